"""Job files: every mistake is one error with its line, and each component gets its own nodes, cores and devices."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from planning import PLAIN
from unit.cli.typed import in_process
from windlass.errors import UsageError
from windlass.model.plan import Plan, plan_from_json
from windlass.model.request import Allocation, Component, Request
from windlass.model.topology import Topology
from windlass.plan.components import filled, plan_whole
from windlass.plan.inputs import PlanningContext
from windlass.sites.catalog import load_site
from windlass.sites.topology.described import topology_from_spec

WRONG = {
    "unknown key": (
        '[components.server]\ncommand = ["true"]\nredy = { port = true }',
        "job.toml:3: components.server.redy: unknown key 'redy'\n  hint: did you mean 'ready'?",
    ),
    "cycle": (
        '[components.a]\ncommand = ["true"]\nneeds = ["b"]\n[components.b]\ncommand = ["true"]\nneeds = ["a"]',
        "job.toml:3: components.a.needs: a cycle: a needs b needs a",
    ),
    "unknown component": (
        '[components.server]\ncommand = ["true"]\n[components.b]\ncommand = ["true"]\nneeds = ["servr"]',
        "job.toml:5: components.b.needs: there is no component 'servr'\n  hint: did you mean 'server'?",
    ),
    "unknown component in a placeholder": (
        '[components.server]\ncommand = ["echo", "{sever.port}"]',
        "job.toml:2: components.server.command: there is no component 'sever'",
    ),
    "too many devices": (
        '[components.a]\ncommand = ["true"]\ngpus_per_node = 5',
        "job.toml:3: components.a.gpus_per_node: 5 devices per node, but a node has 4",
    ),
    "too many cores": (
        '[components.a]\ncommand = ["true"]\ncores_per_node = 65',
        "job.toml:3: components.a.cores_per_node: 65 usable cores per node, but a node has 64",
    ),
    "too many nodes": (
        'nodes = 1\n[components.a]\ncommand = ["true"]\nnodes = 2',
        "job.toml:4: components.a.nodes: no room for 2 whole nodes: the job has 1 node",
    ),
    "one port twice on a node": (
        '[components.a]\ncommand = ["true"]\nport = 8000\ncores_per_node = 1\n'
        '[components.b]\ncommand = ["true"]\nport = 8000\ncores_per_node = 1',
        "job.toml:7: components.b.port: a uses port 8000 on the same node",
    ),
    "no TOML": ('[components.a\ncommand = ["true"]', "job.toml:1: not TOML"),
    "no component": ('name = "x"', "job.toml:1: it has no component"),
    "missing script": ('[components.a]\nscript = "a.py"', "job.toml:1: components.a: script a.py does not exist"),
    "script and command": (
        '[components.a]\nscript = "a.py"\ncommand = ["true"]',
        "job.toml:1: components.a: script and command were given",
    ),
    "two tests of readiness": (
        '[components.a]\ncommand = ["true"]\nready = { port = true, log = "x" }',
        "job.toml:3: components.a.ready: must have exactly one of port, http, log, file, finished",
    ),
    "bad name": ('[components.A_b]\ncommand = ["true"]', "job.toml:1: components.A_b: 'A_b' is not the name of a"),
    "unknown option": (
        '[components.a]\ncommand = ["true"]\noptions = ["--foo"]',
        "job.toml:1: components.a: unrecognized arguments: --foo",
    ),
    "nothing decides the end": (
        '[components.a]\ncommand = ["true"]\nend = "service"',
        "job.toml: no component decides",
    ),
    "misspelled placeholder": (
        '[components.server]\ncommand = ["echo", "{server.prot}", "{server.name}"]',
        "job.toml:2: components.server.command: unknown placeholder {server.prot}\n  hint: did you mean 'port'?",
    ),
    "path without a slash": (
        '[components.a]\ncommand = ["true"]\nready = { http = "health" }',
        "job.toml:3: components.a.ready: http must begin with /",
    ),
    "time limit": (
        'time = "2 hours"\n[components.a]\ncommand = ["true"]',
        "job.toml:1: time: not a time limit: '2 hours'",
    ),
    "a type": ('[components.a]\ncommand = "true"', "job.toml:2: components.a.command: must be a list, not 'true'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_job_file_gets_one_error_with_its_line(name: str, tmp_path: Path) -> None:
    text, said = WRONG[name]
    (tmp_path / "job.toml").write_text(text)
    done = in_process("plan", "--site", "perlmutter", "--account", "abc", "job.toml", cwd=tmp_path)
    assert done.code == 2
    assert said in done.stderr
    assert done.stderr.count("error:") == 1


def test_options_of_one_program_and_arguments_are_refused_next_to_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[components.a]\ncommand = ["true"]')
    refused = in_process("plan", "--container", "x.sif", "job.toml", cwd=tmp_path)
    assert "--container applies to one program" in refused.stderr
    refused = in_process("plan", "job.toml", "--lr", "1", cwd=tmp_path)
    assert "a job file takes no arguments" in refused.stderr


def test_the_script_of_a_component_is_read_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text("import ray\nray.init()\n")
    (tmp_path / "train.py").write_text("from transformers import Trainer\nTrainer().train()\n")
    (tmp_path / "job.toml").write_text(
        '[components.driver]\nscript = "driver.py"\nnodes = 2\n[components.train]\nscript = "train.py"\nrestarts = 2\n'
    )
    done = in_process("plan", "--site", "perlmutter", "--account", "abc", "--json", "job.toml", cwd=tmp_path)
    assert done.code == 0, done.text
    driver, train = plan_from_json(done.stdout).parts
    assert (driver.nodes, driver.ranks_per_node, driver.ray is None) == (2, 1, False)
    assert (train.trainer and train.trainer.name, train.ray) == ("Hugging Face Trainer", None)


def _plan(
    *components: Component, site: str = "perlmutter", hosts: int = 0, topology: Topology | None = None, **more: object
) -> Plan:
    loaded = load_site(site)
    node = topology or topology_from_spec(loaded.file.node, loaded.file.devices)
    allocation = None
    if hosts:
        names = tuple(f"nid{number:04d}" for number in range(1, hosts + 1))
        allocation = Allocation(scheduler=loaded.file.scheduler.kind, job_id="7", hosts=names, whole_nodes=True)
    part = PlanningContext(site=loaded, topology=node, allocation=allocation)
    parts = tuple(msgspec.structs.replace(part, component=one.name) for one in components)
    request = Request(command=(), kind="none", name="job", components=components, **more)  # type: ignore[arg-type]
    return plan_whole(request, msgspec.structs.replace(part, parts=parts))[0]


def _component(name: str, *, cores: int | None = None, port: int | None = None, **request: object) -> Component:
    made = Request(command=("true",), **request)  # type: ignore[arg-type]
    return Component(name=name, request=made, cores_per_node=cores, port=port)


def test_components_without_a_share_get_whole_nodes_in_the_order_of_the_file() -> None:
    plan = _plan(_component("server", nodes=2), _component("trainer"), hosts=4)
    assert [part.hosts for part in plan.parts] == ["nid[0001-0002]", "nid0003"]
    assert [part.ranks_per_node for part in plan.parts] == [4, 4]
    words = [word for argument in plan.parts[1].launch for word in argument.words]
    assert {"--overlap", "--mem=0", "--nodelist=nid0003"} <= set(words)


def test_a_submitted_job_asks_for_as_many_nodes_as_the_components_need() -> None:
    plan = _plan(_component("server", nodes=2), _component("a", gpus_per_node=2), _component("b", gpus_per_node=2))
    assert plan.nodes == 3
    assert any(word == "--nodes=3" for argument in plan.directives for word in argument.words)


def test_shares_of_a_node_have_different_devices_and_the_cores_next_to_them() -> None:
    plan = _plan(_component("a", gpus_per_node=1), _component("b", gpus_per_node=3), hosts=1)
    devices = [sorted(rank.devices for rank in part.binding.ranks) for part in plan.parts]
    assert devices == [[(0,)], [(1,), (2,), (3,)]]
    visible = [next(s.value for s in part.environment if s.name == "CUDA_VISIBLE_DEVICES") for part in plan.parts]
    assert visible == ["0", "3,2,1"]
    cores = [{cpu for rank in part.binding.ranks for cpu in rank.cpus} for part in plan.parts]
    assert not cores[0] & cores[1]
    numa = {cpu: core.numa for core in plan.topology.cores for cpu in core.cpus}
    assert {numa[cpu] for cpu in cores[0]} == {plan.topology.devices[0].numa}
    words = [word for argument in plan.parts[0].launch for word in argument.words]
    assert {"--cpu-bind=none", "--gpus-per-node=4"} <= set(words)
    assert not [word for word in words if word.startswith("--cpus-per-task")]


def test_a_machine_without_a_scheduler_is_divided() -> None:
    plan = _plan(_component("a"), _component("b"), _component("c", cores=2), site="workstation", topology=PLAIN)
    assert [part.binding.ranks[0].cpus for part in plan.parts] == [(2,), (3,), (0, 1)]


def test_every_component_has_its_own_ports() -> None:
    plan = _plan(*(_component(name) for name in "abcd"), hosts=4)
    spans = sorted((part.rendezvous.port_base, part.rendezvous.port_span) for part in plan.parts)
    for (base, span), (following, _) in pairwise(spans):
        assert base + 2 * span <= following


def test_the_same_port_is_allowed_on_different_nodes() -> None:
    assert len(_plan(_component("a", port=8000), _component("b", port=8000), hosts=2).parts) == 2


def test_flux_shares_a_node_between_components() -> None:
    plan = _plan(_component("a", cores=10, ranks_per_node=1), _component("b", cores=10), site="tuolumne", hosts=1)
    words = [word for argument in plan.parts[0].launch for word in argument.words]
    assert {"--cores-per-task=10", "--requires=host:nid0001"} <= set(words)
    assert "--exclusive" not in words


def test_a_share_that_does_not_fit_next_to_the_others_is_refused() -> None:
    with pytest.raises(UsageError, match="no room for 1 node with 2 devices"):
        _plan(_component("a", gpus_per_node=3), _component("b", gpus_per_node=2), hosts=1)


def test_placeholders_are_filled_in_arguments_and_variables() -> None:
    one = _component("a", env=(("URL", "http://{b.addr}:{b.port}"),))
    one = msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, command=("x", "{b.hosts} {rank}")))
    part = _plan(one, _component("b"), hosts=2).parts[0]
    done = filled(part, {"b.addr": "n2", "b.port": "80", "b.hosts": "n2,n3"})
    assert done.command == ("x", "n2,n3 {rank}")
    assert next(s.value for s in done.environment if s.name == "URL") == "http://n2:80"
