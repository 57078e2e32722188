"""Attacks through the text of a plan: every text field of it is a hostile marker once, and the scripts are executed.

The test knows no field by name but those that are shell by design, so it finds the next unquoted place by itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attacks.record import record
from planning import plan_for
from windlass.errors import WindlassError
from windlass.model.plan import CacheDir, CachePlan, CacheRoot, Plan, plan_from_json, plan_to_json
from windlass.plan.render.batch_script import batch_script, launch_script, standalone_script
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts

SHELL_BY_DESIGN = ("prologue.line", "container.activate")
"""A line of shell that the site or the user wrote for the job."""
TOOLS = ("awk", "cat", "chmod", "date", "grep", "head", "mkdir", "rm", "sleep", "tar", "touch", "true", "uname")
OWN_PLACES = ("WINDLASS_RANK", "WINDLASS_LOCAL_RANK", "WINDLASS_NODE_RANK", "RANK", "LOCAL_RANK", "GROUP_RANK")
GAVE_UP = 70
"""Exit code of a rank script that ended before the user's command."""
MARK = "ran-by-the-plan"
HOSTILE = (
    f"x\ntouch {MARK}\n",
    f"$(touch {MARK})`touch {MARK}`",
    f"';touch {MARK};'",
    f'";touch {MARK};"',
    f"x;touch {MARK};x",
    f"x}};touch {MARK};${{x",
    f"x) touch {MARK};; y",
    f"x\\\ntouch {MARK}\n",
)


def plans() -> dict[str, Plan]:
    common: dict[str, Any] = {"time": "1h", "account": "A", "keep_caches": "/keep", "env": (("MINE", "v"),)}
    srun, _ = plan_for("frontier", "sh", "-c", "true", nodes=2, comm_log="0", **common)
    srun = msgspec.structs.replace(srun, modules=(), modules_use=())  # they take half a second, and `pals` has them
    pals, _ = plan_for("aurora", "true", nodes=2, **common)
    box, _ = plan_for("lumi", "true", nodes=1, container="/image.sif", modules=("one/1",), **common)
    local, _ = plan_for("workstation", "python3", "train.py", kind="script", keep_caches="/keep", env=(("MINE", "v"),))
    cache = CachePlan(
        roots=(CacheRoot(path="/env", real="/real/env"),), environments=("/env/venv",), variables=("PYTHONPATH",)
    )
    cached = msgspec.structs.replace(
        local,
        cache=cache,
        parent=True,
        caches=(CacheDir(name="c", subdir="c", variables=("C_DIR",), because="b"),),
    )
    return {"srun": srun, "pals": pals, "container": box, "local": local, "cache": cached}


def texts_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all texts in a value made of lists and dictionaries."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts_in(inner, (*path, index))


def fields(body: Any) -> Iterator[tuple[Any, ...]]:
    """The first and the last of each kind of field: all settings of a plan are rendered alike."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for path in texts_in(body):
        kind = ".".join(part for part in path if isinstance(part, str))
        if kind not in SHELL_BY_DESIGN and not kind.startswith("topology."):
            found.setdefault(kind, []).append(path)
    for paths in found.values():
        yield from dict.fromkeys((paths[0], paths[-1]))


def changed(body: Any, path: tuple[Any, ...], text: str) -> Any:
    copy = json.loads(json.dumps(body))
    place = copy
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = text
    return copy


def scripts(plan: Plan, run_dir: Path) -> Iterator[tuple[str, str]]:
    facts = JobFacts(run_dir=str(run_dir), run_id="run-1", uid=os.getuid(), master_addr="h", master_port=1, job_id="1")
    makers = {
        "rank": lambda: rank_script(plan, facts),
        "launch": lambda: launch_script(plan, str(run_dir)),
        "batch": lambda: batch_script(plan, str(run_dir), ("true",)),
        "standalone": lambda: standalone_script(plan, str(run_dir)),
    }
    inside = 0
    for name, make in makers.items():
        try:
            text = make()
        except WindlassError:  # refused with a sentence: as good as quoted
            continue
        marks = text.count(MARK)
        if marks > (inside if name == "standalone" else 0):  # it holds the rank script, which has been run
            yield name, text
        inside = marks if name == "rank" else inside


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the few programs of the scripts and no launcher."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def run(text: str, shell: str, cwd: Path, tools: Path) -> int:
    script = cwd / "script"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    places = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID")
    env = {"PATH": str(tools), "TMPDIR": str(cwd), **dict.fromkeys((*places, *OWN_PLACES), "0")}
    return subprocess.run(
        [shell, str(script)], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    ).returncode


SLOW = tuple(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pals", "container"))


@pytest.mark.parametrize("kind", ["srun", "local", "cache", *SLOW])
def test_no_text_of_a_plan_is_run_by_a_shell(kind: str, tmp_path: Path, tools: Path) -> None:
    body = json.loads(plan_to_json(plans()[kind]))
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    view = cwd / "local" / f"windlass-{os.getuid()}-run-1.agents" / "c" / "run-1.0" / "view"
    (view / "env").mkdir(parents=True)
    body["cache_root"] = str(cwd / "local")
    body["request"]["cwd"] = str(cwd)
    executed = 0
    facts = JobFacts(run_dir=str(cwd / "run"), run_id="run-1", uid=os.getuid(), master_addr="h", master_port=1)
    as_it_was = rank_script(plan_from_json(json.dumps(body).encode()), facts)
    if kind != "container":  # the image is not there
        assert run(as_it_was, "/bin/sh", cwd, tools) != GAVE_UP, "the script gets as far as the command"
    for path in fields(body):
        for hostile in HOSTILE:
            try:
                plan = plan_from_json(json.dumps(changed(body, path, hostile)).encode())
            except WindlassError:
                continue
            for name, text in scripts(plan, cwd / "run"):
                executed += 1
                run(text, "/bin/bash" if name != "rank" else "/bin/sh", cwd, tools)
                assert not (cwd / MARK).exists(), (
                    f"{'.'.join(map(str, path))} = {hostile!r} is run by the {name} script"
                )
    assert executed > 100
    record(
        f"hostile text in every field of a plan ({kind})",
        expected="no script runs any of it",
        seen="none was run",
        scripts=executed,
    )


def test_the_name_of_a_variable_in_a_saved_plan_is_checked() -> None:
    plan = plans()["local"]
    for name in ("A;id", "A B", "", "1A", "A=B", "A\nB", "a-b", "é"):
        body = json.loads(plan_to_json(plan))
        body["environment"][0]["name"] = name
        with pytest.raises(WindlassError, match="not the name of a variable"):
            plan_from_json(json.dumps(body).encode())


def test_keep_caches_with_a_command_in_its_name_runs_nothing(tmp_path: Path, tools: Path) -> None:
    keep = tmp_path / f"keep$(touch {MARK})"
    keep.mkdir()
    (keep / "caches.tar").write_text("no archive")
    plan, _ = plan_for("workstation", "true", keep_caches=str(keep))
    plan = msgspec.structs.replace(
        plan, cache_root=str(tmp_path), request=msgspec.structs.replace(plan.request, cwd="")
    )
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    facts = JobFacts(run_dir=str(cwd), run_id="run-1", uid=os.getuid(), master_addr="h", master_port=1)
    assert run(rank_script(plan, facts), "/bin/sh", cwd, tools) != GAVE_UP
    assert not any(cwd.glob(MARK))


def test_changed_plans_end_in_a_sentence() -> None:
    """A fuzzer with a seed: bytes and values of any type in any place of a saved plan."""
    import random

    rng = random.Random(12)
    text = plan_to_json(plans()["srun"])
    body = json.loads(text)
    junk: list[Any] = [
        None,
        -1,
        2**70,
        1e308,
        "",
        "\0",
        [],
        {},
        "é",
        [[]],
        True,
    ]
    paths = list(texts_in(body))
    for _ in range(400):
        data = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        value = json.dumps(changed(body, rng.choice(paths), rng.choice(junk))).encode()
        for candidate in (bytes(data), value, bytes(data[: rng.randrange(len(data))])):
            try:
                plan_from_json(candidate)
            except WindlassError as error:
                assert re.search("plan", error.message)
    record("changed and torn plans (seed 12)", expected="a sentence", seen="a sentence", plans=1200)
    for depth in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(WindlassError):
            plan_from_json(depth)
