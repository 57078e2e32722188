"""Modules and activation: shell lines that are executed, and the question whose a variable is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from looping import each
from requirements import require_modules
from unit.cli.typed import in_process, run_here, script
from windlass.base.settings import Settings
from windlass.model.request import Request
from windlass.plan.environment.modules import (
    activation_lines,
    after_modules_argv,
    loaded_modules,
    module_lines,
    parse_environment,
    users_variables,
)
from windlass.run.context import gather_context

MODULEFILE = """#%Module1.0
setenv FI_MR_CACHE_MONITOR memhooks
setenv OMP_NUM_THREADS 77
setenv TOOL_HOME "/opt/it's a tool"
prepend-path PATH /opt/tool/bin
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder of modules: `tool/1.0` sets variables, `broken` does not load."""
    require_modules()
    folder = tmp_path / "my modules"
    (folder / "tool").mkdir(parents=True)
    (folder / "tool" / "1.0").write_text(MODULEFILE)
    (folder / "broken").write_text('#%Module1.0\nputs stderr "no licence"\nbreak\n'.replace("\\\n", "\n"))
    return folder


def _environment_with(modules: Path, *more: str) -> dict[str, str]:
    """The environment of a shell in which somebody has loaded the module, and then done more."""
    text = "\n".join(
        [". /usr/share/modules/init/bash", f'module use "{modules}"', "module load tool/1.0", *more, "env -0"]
    )
    env = {"PATH": "/usr/bin:/bin", "HOME": str(modules.parent), "WINDLASS_CONFIG": "/nonexistent"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)


# -- with real environment modules --


@pytest.mark.modules
def test_modules_of_a_run_are_loaded_before_the_ranks_start(tmp_path: Path, modules: Path) -> None:
    words = (
        "-q",
        "-r",
        "2",
        "--show",
        "all",
        "--module",
        "tool/1.0",
        "--",
        "sh",
        "-c",
        'echo "$TOOL_HOME:$PATH" | cut -c1-30',
    )
    ended = run_here(*words, cwd=tmp_path, env={"MODULEPATH": str(modules)})
    assert ended.code == 0, ended.text
    assert sorted(ended.stdout.splitlines()) == [f"[{rank}] /opt/it's a tool:/opt/tool/bin" for rank in (0, 1)]


@pytest.mark.modules
@pytest.mark.parametrize("name", ["broken", "not-there/9"])
def test_a_module_that_does_not_load_ends_the_run_by_name(tmp_path: Path, modules: Path, name: str) -> None:
    words = ("--run-dir", "r", "--module", name, "--", "touch", "started")
    ended = run_here(*words, cwd=tmp_path, env={"MODULEPATH": str(modules)})
    assert ended.code == 3
    assert f"windlass: module {name} does not load" in ended.text
    assert not (tmp_path / "started").exists()


@pytest.mark.modules
def test_what_a_module_set_is_not_the_users(modules: Path) -> None:
    environ = _environment_with(modules)
    assert environ["FI_MR_CACHE_MONITOR"] == "memhooks"
    done = subprocess.run(
        after_modules_argv((str(modules),), loaded_modules(environ)),
        env={"HOME": str(modules.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    users = users_variables(environ, parse_environment(done.stdout))
    assert not {"FI_MR_CACHE_MONITOR", "OMP_NUM_THREADS", "TOOL_HOME"} & set(users)


@pytest.mark.modules
@pytest.mark.parametrize(
    ("more", "name", "users"),
    [
        ((), "FI_MR_CACHE_MONITOR", None),
        (("export FI_MR_CACHE_MONITOR=kdreg2",), "FI_MR_CACHE_MONITOR", "kdreg2"),
        ((), "OMP_NUM_THREADS", None),
        (("export OMP_NUM_THREADS=3",), "OMP_NUM_THREADS", "3"),
    ],
)
def test_a_plan_knows_the_modules_value_from_the_users(
    modules: Path, more: tuple[str, ...], name: str, users: str | None
) -> None:
    environ = _environment_with(modules, *more)
    request = Request(command=("true",), site="lumi", nodes=2)
    _, context = gather_context(request, Settings(config_dir=modules / "none"), environ=environ, here=False)
    assert context.users_environment.get(name) == users


@pytest.mark.modules
def test_plan_and_explain_say_so(tmp_path: Path, modules: Path) -> None:
    environ = _environment_with(modules)
    words = ("explain", "FI_MR_CACHE_MONITOR", "--site", "lumi", "--nodes", "2")
    assert "FI_MR_CACHE_MONITOR=userfaultfd   (variable" in in_process(*words, cwd=tmp_path, env=environ).stdout
    mine = {**environ, "FI_MR_CACHE_MONITOR": "kdreg2"}
    assert "FI_MR_CACHE_MONITOR=kdreg2   # yours" in in_process(*words, cwd=tmp_path, env=mine).stdout


# -- without --


def test_without_modules_everything_but_the_schedulers_is_the_users() -> None:
    environ = {"A": "1", "SLURM_JOB_ID": "7", "PBS_NODEFILE": "x", "PMI_RANK": "0", "BASH_FUNC_ml%%": "()"}
    assert users_variables(environ, None) == {"A": "1"}


def test_an_environment_with_line_breaks_is_read_back() -> None:
    done = subprocess.run(
        after_modules_argv((), ()),
        env={"PATH": os.environ["PATH"], "A": "two\nlines=1"},
        capture_output=True,
        text=True,
    )
    assert parse_environment("noise of a login shell\n" + done.stdout)["A"] == "two\nlines=1"


def test_no_modules_means_no_lines() -> None:
    assert module_lines((), ()) == ()
    assert loaded_modules({"LOADEDMODULES": "a/1:b:"}) == ("a/1", "b")
    assert loaded_modules({}) == ()


# -- activation --


def _venv(folder: Path) -> Path:
    import venv

    target = folder / "my 'env"
    venv.create(target, with_pip=False, symlinks=True)
    return target


def test_a_virtual_environment_is_active_in_the_ranks(tmp_path: Path) -> None:
    target = _venv(tmp_path)
    script(tmp_path, "import os,sys; print(os.environ['VIRTUAL_ENV']); print(sys.prefix)")
    from unit.cli.typed import windlass

    ended = windlass("run", "-q", "--activate", str(target), "place.py", cwd=tmp_path)
    assert ended.stdout.splitlines() == [f"[0] {target}", f"[0] {target}"]
    command = windlass("run", "-q", "--activate", str(target), "--", "sh", "-c", "command -v python", cwd=tmp_path)
    assert command.stdout == f"[0] {target}/bin/python\n"


def test_a_conda_environment_is_active_with_its_own_hooks(tmp_path: Path) -> None:
    prefix = tmp_path / "con da"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "conda-meta").mkdir()
    (prefix / "etc/conda/activate.d").mkdir(parents=True)
    (prefix / "etc/conda/activate.d/hook.sh").write_text("export HOOK=ran\n")
    (prefix / "bin/tool").write_text("#!/bin/sh\necho $CONDA_PREFIX $HOOK\n")
    (prefix / "bin/tool").chmod(0o755)
    ended = run_here("-q", "--activate", str(prefix), "--", "tool", cwd=tmp_path)
    assert ended.stdout == f"[0] {prefix} ran\n"


@each("kind", ["venv", "conda", "unseen"])
def test_activation_quotes_its_folder(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "$(touch pwned) `id` 'x'"
    (target / "bin").mkdir(parents=True)
    (target / "bin/activate").write_text("export SEEN=yes\n")
    text = "\n".join([*activation_lines(str(target), kind), "echo done $SEEN"])
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("done")
    assert not (tmp_path / "pwned").exists()


@each(("made", "said"), [("bin", "venv"), ("conda-meta", "conda"), ("etc", "untouched"), (None, "untouched")])
def test_what_nobody_saw_is_activated_as_what_the_node_has(tmp_path: Path, made: str | None, said: str) -> None:
    target = tmp_path / "its env"
    if made:
        (target / made).mkdir(parents=True)
    if made in {"bin", "conda-meta"}:  # a conda environment may have a bin/activate too: of conda itself
        (target / "bin").mkdir(exist_ok=True)
        (target / "bin/activate").write_text("export SEEN=venv\n")
    show = f'[ "${{CONDA_PREFIX-}}" != "{target}" ] || SEEN=conda; echo "${{SEEN-untouched}}"'
    text = "\n".join([*activation_lines(str(target), "unseen"), show])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert (done.stdout, done.stderr) == (f"{said}\n", "")


def test_threads_that_pbs_counted_are_not_the_users() -> None:
    job = {"PBS_JOBID": "7.head", "NCPUS": "8"}
    assert users_variables({**job, "OMP_NUM_THREADS": "8"}, None) == {}
    assert users_variables({**job, "OMP_NUM_THREADS": "2"}, None) == {"OMP_NUM_THREADS": "2"}
    assert users_variables({"NCPUS": "8", "OMP_NUM_THREADS": "8"}, None) == {"NCPUS": "8", "OMP_NUM_THREADS": "8"}


SITE = """kind = "overlay"
extends = "workstation"

[[modules]]
load = ["tool"]
default = false
because = "settings of somebody who measured"
variables = ["FI_*"]
source = "own"

[[settings]]
name = "FI_MR_CACHE_MONITOR"
value = "userfaultfd"
because = "x"
source = "own"

[[settings]]
name = "FI_LOG_LEVEL"
value = "warn"
because = "x"
source = "own"
"""


@pytest.mark.modules
@pytest.mark.parametrize(
    ("words", "monitor"),
    [
        (("--module", "tool/1.0"), "memhooks"),
        (("--module", "tool/1.0", "--env", "FI_MR_CACHE_MONITOR=kdreg2"), "kdreg2"),
        ((), "userfaultfd"),
    ],
    ids=["module", "user", "catalog"],
)
def test_variables_that_a_module_is_known_to_set_are_left_to_it(
    tmp_path: Path, modules: Path, words: tuple[str, ...], monitor: str
) -> None:
    site = tmp_path / "mine.toml"
    site.write_text(SITE)
    env = {"MODULEPATH": str(modules)}
    show = "import os; print('got', os.environ['FI_MR_CACHE_MONITOR'], os.environ['FI_LOG_LEVEL'])"
    path = script(tmp_path, show)
    done = run_here("-q", "--site", str(site), *words, str(path), cwd=tmp_path, env=env)
    assert f"got {monitor} warn" in done.text
