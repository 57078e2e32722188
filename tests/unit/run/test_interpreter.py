"""Which Python runs a script, and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windlass.base.settings import Settings
from windlass.errors import UsageError
from windlass.model.request import Allocation, Request
from windlass.run import context
from windlass.run.interpreter import check_python, find_python, missing_imports
from windlass.run.remote import NodeProbe
from windlass.sites.catalog import load_site
from windlass.sites.topology.described import probe_topology

PLAIN = {"PATH": "/usr/bin:/bin"}


def script(folder: Path, text: str, **options: object) -> Request:
    (folder / "train.py").write_text(text)
    return Request(command=("train.py",), kind="script", cwd=str(folder), **options)  # type: ignore[arg-type]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


@pytest.mark.parametrize("site", ["aurora", "polaris", "sophia"])
def test_the_python_of_the_site_s_module_runs_the_script(site: str, tmp_path: Path) -> None:
    request = script(tmp_path, "import intel_extension_for_pytorch_of_the_site\n")
    python, because = find_python(request, load_site(site), PLAIN)
    assert python == "python3" and "of the site's module" in because and "in the job" in because


def test_a_module_that_was_asked_for_brings_its_python(tmp_path: Path) -> None:
    site = load_site("perlmutter")
    text = "import not_here_at_all\n"
    assert find_python(script(tmp_path, text), site, PLAIN)[0] != "python3"
    assert find_python(script(tmp_path, text, modules=("pytorch/2.6.0",)), site, PLAIN)[0] == "python3"


@pytest.mark.parametrize("options", [{"no_modules": True}, {"container": "image.sif"}])
def test_a_module_that_is_not_loaded_brings_nothing(options: dict[str, object], tmp_path: Path) -> None:
    request = script(tmp_path, "import not_here_at_all\n", **options)
    assert "module" not in find_python(request, load_site("aurora"), PLAIN)[1]


def test_what_the_user_says_or_has_activated_wins_over_the_site(tmp_path: Path, venv: Path) -> None:
    site = load_site("aurora")
    text = "import torch\n"
    assert find_python(script(tmp_path, text, python="/x/python"), site, PLAIN)[0] == "/x/python"
    assert find_python(script(tmp_path, text, activate=str(venv)), site, PLAIN)[0] == f"{venv}/bin/python"
    active = {**PLAIN, "VIRTUAL_ENV": str(venv)}
    assert find_python(script(tmp_path, text), site, active)[0] == f"{venv}/bin/python"
    conda = {**PLAIN, "CONDA_PREFIX": str(venv)}
    assert find_python(script(tmp_path, text), site, conda)[0] == f"{venv}/bin/python"


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="windlass is not in an environment of its own here")
def test_windlass_s_own_environment_counts_only_with_what_the_script_imports(tmp_path: Path) -> None:
    active = {**PLAIN, "VIRTUAL_ENV": sys.prefix}
    aurora, here = load_site("aurora"), load_site("workstation")
    has, lacks = script(tmp_path, "import msgspec\n"), None
    assert find_python(has, aurora, active)[0] == sys.executable
    assert find_python(has, aurora, PLAIN)[0] == "python3", "not activated, and the site has its own"
    assert find_python(has, here, PLAIN)[0] == sys.executable
    lacks = script(tmp_path, "import not_here_at_all\n")
    assert find_python(lacks, aurora, active)[0] == "python3"
    python, because = find_python(lacks, here, active)
    assert python == sys.executable and "it has no not_here_at_all" in because


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="windlass is not in an environment of its own here")
@pytest.mark.parametrize("environ", [PLAIN, {**PLAIN, "VIRTUAL_ENV": sys.prefix}])
def test_nothing_is_said_of_the_imports_of_a_script_that_is_not_here(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.run.interpreter._has", lambda name: True)
    here, request = load_site("workstation"), script(tmp_path, "import msgspec\n")
    assert find_python(request, here, environ)[1].endswith(", which has what the script imports")
    (tmp_path / "train.py").unlink()
    python, because = find_python(request, here, environ)
    assert python == sys.executable and "imports" not in because and "environment" in because


def test_imports_are_read_from_the_script_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "package").mkdir()
    text = "import os, mine, package.sub\nfrom . import x\ndef f():\n    import not_here_at_all.deep\nimport msgspec\n"
    assert missing_imports(script(tmp_path, text)) == ("not_here_at_all",)
    assert missing_imports(script(tmp_path, "import os\n")) == ()
    assert missing_imports(Request(command=("not_here_at_all.main",), kind="module")) == ("not_here_at_all",)


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "("])
def test_a_script_that_cannot_be_read_is_taken_for_one_that_needs_torch(text: str, tmp_path: Path) -> None:
    assert missing_imports(script(tmp_path, text)) in {(), ("torch",)}


def test_an_interpreter_that_was_staged_to_the_nodes_need_not_be_on_the_login_node(tmp_path: Path) -> None:
    staged = script(tmp_path, "", python="/tmp/no-such-env/bin/python")
    check_python(staged, node_local=("/tmp",))
    for elsewhere in ((), ("/tmp/no-such",)):
        with pytest.raises(UsageError, match="does not exist"):
            check_python(staged, node_local=elsewhere)


def test_what_was_staged_is_activated_from_a_shell_that_stays_on_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Allocation(scheduler="slurm", job_id="7", hosts=("no-such-node",))
    node = NodeProbe(topology=probe_topology(), taken_ports=())
    monkeypatch.setattr(context, "find_allocation", lambda *_: job)
    monkeypatch.setattr(context, "probe_node", lambda *_: node)
    settings = Settings(config_dir=tmp_path / "none")
    staged = script(tmp_path, "", activate="/mnt/bb/me/no-such-env", site="frontier")
    _, found = context.gather_context(staged, settings, environ=PLAIN, here=True)
    assert (found.activate_kind, found.python) == ("unseen", "/mnt/bb/me/no-such-env/bin/python")
    monkeypatch.setattr(context, "is_this_host", lambda *_: True)
    with pytest.raises(UsageError, match="does not exist here"):
        context.gather_context(staged, settings, environ=PLAIN, here=True)
