"""The host's network libraries for a container, on every node.

The image is examined once. Then one node step finds and copies the libraries that this image needs. `host-libs.json` in
the run folder lists the copied libraries and the reasons.
"""

from __future__ import annotations

import json
import platform
from typing import Any

import msgspec

from windlass.agents.step import Question, ask, run_node_step
from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import image_kind, looked_up
from windlass.backends.containers.binds import expanded
from windlass.base.notation.counts import counted
from windlass.build.images.facts import parse_probe, probe_text
from windlass.build.images.unpack import inspect_image
from windlass.errors import CommandError, MachineError, UsageError
from windlass.model.plan import ContainerPlan, HostLibs, Plan
from windlass.node.libs.decide import BEHIND, FRONT, ImageFacts, facts_as_json
from windlass.plan.agents import plan_node_step
from windlass.plan.render.rank_lines import cache_parent, container_script
from windlass.plan.render.variables import JobFacts
from windlass.run.planning import Run
from windlass.run.rendezvous import plan_hosts

SPEC_FILE, RECORD_FILE, PROBE_FILE = "image.json", "host-libs.json", "image-probe.sh"
_PROBE_S = 300.0
_PLACE_S = 300.0


def write_injection(run: Run, facts: JobFacts) -> None:
    """Write the files that the nodes need for this to the run folder. Nothing if the plan uses no host library."""
    taken = _taken(run.plan)
    if taken is None:
        return
    spec: dict[str, Any] = {
        "image": facts_as_json(_image_facts(run, facts)),
        "root": "/",
        "names": taken.names,
        "folders": taken.folders,
        "provider": taken.provider,
        "own": taken.own,
        "parent": cache_parent(run.plan, facts),
        "given": _given(run),
    }
    run.folder.write(SPEC_FILE, json.dumps(spec))


def place_host_libraries(run: Run) -> None:
    """Run the step on all nodes.

    Raises `MachineError` if a node has no library that fits the image. It is better not to start than to have a rank
    that uses TCP or crashes in the loader.
    """
    if _taken(run.plan) is None:
        return
    question = Question(
        entry="windlass.node.libs.place:main",
        purpose="host-libs",
        deadline_s=_PLACE_S,
        settings={"spec": str(run.folder.part(SPEC_FILE))},
        alone=False,
    )
    said = ask(run.plan, run.folder, run.environ, question)
    answers = [{"node": message["host"], **message["libraries"]} for message in said.messages if "libraries" in message]
    run.folder.write(RECORD_FILE, json.dumps(answers, indent=1) + "\n")
    for answer in answers:
        if answer["refused"]:
            raise MachineError(
                f"the host's network libraries do not fit the image (node {answer['node']}): "
                + "; ".join(answer["refused"]),
                hint=answer["remedy"],
            )
    if len(answers) < run.plan.nodes:
        silent = counted(run.plan.nodes - len(answers), "node")
        raise MachineError(
            f"{silent} did not put the host's libraries into the container: {said.complaint or 'no message'}",
            hint="--host-libs none uses the libraries of the image; `windlass image check IMAGE --site NAME` shows "
            "details",
        )
    if not run.quiet:
        run.view.note(_summary(answers))


def _given(run: Run) -> list[str]:
    """Return the variables that the user or the site has set. The node does not change them.

    A plugin that the user's environment names counts. FI_PROVIDER_PATH does not count: a module sets it, and it refers
    to folders of the host.
    """
    own = {"NCCL_NET_PLUGIN"} & run.environ.keys()
    return sorted({setting.name for setting in run.plan.environment if not setting.joins} | own)


def _taken(plan: Plan) -> HostLibs | None:
    return plan.container.host_libs if plan.container is not None else None


def _image_facts(run: Run, facts: JobFacts) -> ImageFacts:
    """Examine the image: by its files if it is a file or a folder, otherwise with a probe in it on one node."""
    container = run.plan.container
    assert container is not None
    if looked_up(container.image) and image_kind(container.image) != "edf":
        path = expanded(container.image, run.environ) or container.image
        return inspect_image(path, run.environ)[1]
    if get_runtime(container.runtime).starts_task:
        raise UsageError(
            f"--host-libs: {container.image} cannot be read before the container engine starts it",
            hint="import it to a .sqsh file and give that, or enable the engine's hook (com.hooks.cxi.enabled)",
        )
    return _probed(run, facts, container)


def _probed(run: Run, facts: JobFacts, container: ContainerPlan) -> ImageFacts:
    bare = msgspec.structs.replace(container, settings=(), activate="", host_libs=None)
    plan = msgspec.structs.replace(run.plan, container=bare, environment=())
    text = container_script(plan, facts.run_dir, ("sh", "-c", probe_text()))
    path = run.folder.write(PROBE_FILE, text, mode=0o700)
    step = plan_node_step(run.plan, "image", hosts=_one_host(run.plan), nodes=1, host_file="probe-hosts")
    try:
        said = run_node_step(
            step, (str(path),), environ=run.environ, timeout_s=_PROBE_S, folder=run.folder, check=False
        )
    except CommandError as error:
        raise MachineError(
            f"cannot read the image {container.image}: {error.message}",
            hint="check that this container runtime can start it: `windlass image check IMAGE`",
        ) from error
    found = parse_probe(said.stdout, platform.machine())
    if found is None:
        last = (said.stderr.strip() or "no message").splitlines()[-1]
        raise UsageError(
            f"cannot read the image {container.image}: {last}",
            hint="check that it starts and has a shell, or leave it unchanged with --host-libs none",
        )
    return found


def _one_host(plan: Plan) -> tuple[str, ...] | None:
    hosts = plan_hosts(plan)
    return hosts[:1] or None


def _summary(answers: list[dict[str, Any]]) -> str:
    placed = answers[0]["placed"]
    front = [entry["source"] for entry in placed if entry["where"] == FRONT]
    behind = [entry["name"] for entry in placed if entry["where"] == BEHIND]
    text = "windlass: container: baked: the image's own libfabric supports the fabric, so no host library is added"
    if front:
        text = f"windlass: container: host-inject: {', '.join(front)}"
        text += f" and {len(behind)} that it needs and the image lacks" if behind else ""
    hidden = answers[0]["hidden"]
    text += f"; hidden from NCCL and RCCL: {', '.join(hidden)}" if hidden else ""
    return "\n".join([text, *(f"windlass: container: warning: {said}" for said in answers[0]["warnings"])])
