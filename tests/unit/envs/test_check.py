"""Environments that are sound, moved, damaged or another machine's: what the check says and what it advises."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from unit.cli.typed import environment, windlass
from windlass.build.envs.check import EnvCheck, EnvLocation, HostFacts, check_env, parse_nvidia_version
from windlass.build.envs.inspect import inspect_env
from windlass.errors import UsageError
from windlass.model.finding import Finding, verdict_text
from windlass.sites.catalog import load_site

HOST = HostFacts(machine="x86_64", glibc="2.36")
PACKAGES = f"lib/python3.{sys.version_info.minor}/site-packages"


def bare(path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True, timeout=60)
    return path


def put(env: Path, name: str, version: str = "1.0", *needs: str) -> Path:
    info = env / PACKAGES / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    return info


def put_torch(env: Path, version: str, **build: str) -> None:
    (env / PACKAGES / "torch").mkdir()
    lines = [f"__version__ = '{version}'", *(f"{key}: Optional[str] = '{value}'" for key, value in build.items())]
    (env / PACKAGES / "torch" / "version.py").write_text("\n".join(lines) + "\nhip: Optional[str] = None\n")
    put(env, "torch", version)


def check(env: Path, site: str = "workstation", host: HostFacts | None = HOST, **place: str) -> EnvCheck:
    return check_env(inspect_env(str(env)), load_site(site), host, EnvLocation(**place))


def about(check: EnvCheck, kind: str) -> list[Finding]:
    return [finding for finding in check.findings if finding.kind == kind and finding.severity != "ok"]


@pytest.fixture
def env(tmp_path: Path) -> Path:
    return bare(tmp_path / "env")


def test_a_sound_environment_has_nothing_against_it(env: Path) -> None:
    put(env, "alpha", "1.0", "beta>=2", "gamma; extra == 'all'")
    put(env, "beta", "2.1")
    found = check(env)
    assert found.severity in ("ok", "note"), verdict_text(found.findings)
    assert found.facts.packages == {"alpha": "1.0", "beta": "2.1"}
    assert found.facts.machine == os.uname().machine


def test_missing_and_double_packages_are_named(env: Path) -> None:
    put(env, "alpha", "1.0", "beta>=2", "gamma")
    put(env, "beta", "1.0")
    put(env, "delta", "1.0")
    put(env, "delta", "2.0")
    texts = [finding.evidence for finding in about(check(env), "packages")]
    assert texts == [
        "installed twice: delta",
        "alpha needs beta >=2, which is 1.0",
        "alpha needs gamma, which is missing",
    ]


def test_a_moved_environment_is_an_error_with_the_way_out(env: Path) -> None:
    script = env / "bin" / "tool"
    script.write_text(f"#!{env}/bin/python\nprint(1)\n")
    moved = env.with_name("moved")
    env.rename(moved)
    found = about(check(moved), "moved")
    assert (
        found[0].severity == "error"
        and f"tool: {env}/bin/python" in found[0].evidence
        and "env pack" in found[0].advice
    )


def test_a_base_interpreter_that_is_gone_is_an_error(env: Path) -> None:
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to("/opt/modules/python/3.10/bin/python3")
    found = about(check(env), "python")
    assert found[0].severity == "error" and "/opt/modules/python" in found[0].evidence


def test_a_base_of_another_version_is_an_error(env: Path, tmp_path: Path) -> None:
    updated = tmp_path / "python3.99"
    updated.touch()
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to(updated)
    assert "is not the Python 3." in about(check(env), "python")[0].evidence


def test_the_build_of_torch_is_held_against_devices_and_driver(env: Path) -> None:
    put_torch(env, "2.10.0+cu130", cuda="13.0")
    old = HostFacts(machine="x86_64", glibc="2.36", vendor="nvidia", driver="550.54.15")
    assert "needs driver 580 or newer, this machine has 550.54.15" in about(check(env, host=old), "torch")[0].evidence
    new = HostFacts(machine="x86_64", glibc="2.36", vendor="nvidia", driver="580.65.06")
    assert about(check(env, host=new), "torch") == []
    assert "does not use the site's devices (amd)" in about(check(env, "frontier", None), "torch")[0].evidence
    assert check(env, "frontier", None).severity == "error"


def test_another_rocm_than_the_sites_module_is_pointed_out(env: Path) -> None:
    put_torch(env, "2.9.0+rocm6.4", hip="6.4.43482")
    found = check(env, "frontier", None)
    assert "7.1.1 in the site's module" in about(found, "torch")[0].evidence
    assert about(found, "plugin")[0].severity == "note", "RCCL's plugin must come from the site"


def test_paths_that_leave_the_environment_are_told_apart(env: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "more").mkdir()
    packages = env / PACKAGES
    (packages / "__editable__.mine-1.0.pth").write_text(f"{tmp_path}/src\n")
    (packages / "__editable___yours_1_0_finder.py").write_text(f"MAPPING = {{'yours': '{tmp_path}/gone/yours'}}\n")
    (packages / "site.pth").write_text(f"import os\n{tmp_path}/more\n{env}/lib\n")
    levels = {finding.evidence.split(":")[0]: finding.severity for finding in about(check(env), "paths")}
    assert levels == {
        "paths that no longer exist": "error",
        "installed with pip install -e, so the code is outside": "warning",
        ".pth files refer to folders outside": "note",
    }


def test_mpi_of_another_kind_is_an_error_on_a_cray(env: Path, tmp_path: Path) -> None:
    (env / PACKAGES / "mpi4py").mkdir()
    (tmp_path / "mpi.c").write_text("int MPI_Init(void){return 0;}")
    (tmp_path / "ext.c").write_text("int MPI_Init(void); int PyInit_MPI(void){return MPI_Init();}")
    library = tmp_path / "libmpi.so.40"
    build = ["gcc", "-shared", "-fPIC", "-o"]
    subprocess.run([*build, library, tmp_path / "mpi.c", "-Wl,-soname,libmpi.so.40"], check=True, timeout=60)
    extension = env / PACKAGES / "mpi4py" / "MPI.cpython-311-x86_64-linux-gnu.so"
    subprocess.run([*build, extension, tmp_path / "ext.c", library, f"-Wl,-rpath,{tmp_path}"], check=True, timeout=60)
    assert check(env).facts.mpi[0].place == str(library) and about(check(env), "mpi4py") == []
    assert "Cray MPICH" in about(check(env, "frontier", None), "mpi4py")[0].evidence


def test_an_mpi_that_is_gone_is_pointed_out(env: Path, tmp_path: Path) -> None:
    (env / PACKAGES / "mpi4py").mkdir()
    (tmp_path / "mpi.c").write_text("int MPI_Init(void){return 0;}")
    library, extension = tmp_path / "libmpi.so.99", env / PACKAGES / "mpi4py" / "MPI.so"
    build = ["gcc", "-shared", "-fPIC", "-o"]
    subprocess.run([*build, library, tmp_path / "mpi.c", "-Wl,-soname,libmpi.so.99"], check=True, timeout=60)
    words = [*build, extension, tmp_path / "mpi.c", "-Wl,--no-as-needed", library]
    subprocess.run(words, check=True, timeout=60)
    found = about(check(env), "mpi4py")
    assert [finding.severity for finding in found] == ["warning"] and "libmpi.so.99" in found[0].evidence


def test_libraries_for_another_machine_newer_glibc_and_damage_are_found(env: Path) -> None:
    folder = env / PACKAGES
    own = Path(os.path.realpath(sys.executable)).read_bytes()
    other = bytearray(own)
    other[18:20] = (183).to_bytes(2, "little")
    (folder / "other.so").write_bytes(bytes(other))
    (folder / "torn.so").write_bytes(own[:200])
    (folder / "empty.so").touch()
    (folder / "script.so").write_text("/* GNU ld script */ INPUT(libother.so)\n")
    found = check(env, host=HostFacts(machine="x86_64", glibc="2.1"))
    if found.facts.machine == "x86_64":
        assert found.facts.foreign == (f"{PACKAGES}/other.so",)
    assert set(found.facts.damaged) == {f"{PACKAGES}/torn.so", f"{PACKAGES}/empty.so"}
    (folder / "real.so").write_bytes(own)
    assert about(check(env, host=HostFacts(machine="x86_64", glibc="2.1")), "glibc")[0].severity == "error"


def test_packages_beneath_are_seen_and_hiding_them_is_pointed_out(tmp_path: Path) -> None:
    prefix = tmp_path / "module"
    shutil.copytree(bare(tmp_path / "base"), prefix, symlinks=True)
    put(prefix, "torch", "2.10.0")
    put(prefix, "numpy", "2.0")
    (prefix / "bin" / "python3").unlink()
    shutil.copy2(os.path.realpath(sys.executable), prefix / "bin" / "python3")
    env = bare(tmp_path / "env")
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to(prefix / "bin" / "python3")
    config = (env / "pyvenv.cfg").read_text()
    (env / "pyvenv.cfg").write_text(config.replace("site-packages = false", "site-packages = true"))
    put(env, "alpha", "1.0", "numpy>=2", "torch")
    assert about(check(env), "packages") == [], "needs may be met beneath"
    put_torch(env, "2.9.0")
    assert "torch hides the site's package" in about(check(env), "packages")[0].evidence


def test_a_slow_place_and_another_site_are_told(env: Path) -> None:
    (env / "windlass-env.json").write_text(json.dumps({"site": "aurora"}))
    found = check(env, "frontier", None, file_system="NFS")
    assert "236 s on 8 nodes" in about(found, "place")[0].evidence
    assert about(found, "site")[0].severity == "warning"


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, said in (
        ("gone", "there is no such folder"),
        ("file", "it is a file"),
        (".", "neither pyvenv.cfg"),
    ):
        with pytest.raises(UsageError, match=said):
            inspect_env(str(tmp_path / path))


def test_no_damage_makes_the_check_fail(env: Path, tmp_path: Path) -> None:
    put_torch(env, "2.10.0", cuda="12.8")
    put(env, "alpha", "1.0", "beta")
    (env / PACKAGES / "a.pth").write_text("/gone\n")
    (env / "bin" / "tool").write_text(f"#!{env}/bin/python\n")
    (env / "windlass-env.json").write_text("{}")
    dice = random.Random(14)
    files = [path for path in sorted(env.rglob("*")) if path.is_file() and not path.is_symlink()]
    for _ in range(60):
        path = dice.choice(files)
        kept = path.read_bytes() if path.exists() else b""
        path.unlink(missing_ok=True)
        kind = dice.randrange(4)
        if kind == 0:
            path.write_bytes(dice.randbytes(dice.randrange(400)))
        elif kind == 1:
            path.write_bytes(kept[: dice.randrange(len(kept) + 1)])
        elif kind == 2:
            path.symlink_to(path.name)
        try:
            verdict_text(check(env).findings)
        except UsageError:
            assert not (env / "pyvenv.cfg").is_file()
        path.unlink(missing_ok=True)
        path.write_bytes(kept)


def test_the_command_ends_with_1_for_an_error_and_takes_the_active_environment(env: Path, tmp_path: Path) -> None:
    assert windlass("env", "check", cwd=tmp_path).code == 2
    sound = windlass("env", "check", cwd=tmp_path, env={"VIRTUAL_ENV": str(env)})
    assert sound.code == 0 and str(env) in sound.stdout and "verdict on " in sound.stdout
    (env / "bin" / "python").unlink()
    broken = windlass("env", "check", str(env), "--json", cwd=tmp_path)
    assert broken.code == 1 and json.loads(broken.stdout)["severity"] == "error"


def test_the_command_checks_with_the_search_paths_of_the_shell(env: Path, tmp_path: Path) -> None:
    put(env, "alpha")
    (env / PACKAGES / "alpha.py").touch()
    (tmp_path / "random.py").touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "alpha.py").touch()
    path = f"{tmp_path / 'more'}:{environment(tmp_path)['PYTHONPATH']}"
    done = windlass("env", "check", str(env), "--json", cwd=tmp_path, env={"PYTHONPATH": path})
    hidden = {one["by"]: one["module"] for one in json.loads(done.stdout)["facts"]["hidden"]}
    assert hidden == {"PYTHONPATH": "alpha", "the current folder": "random"}


def test_without_torch_the_check_says_so_and_the_verdict_counts(env: Path) -> None:
    found = check(env, "frontier", None)
    [torch] = about(found, "torch")
    assert torch.severity == "warning" and torch.evidence == "not installed" and "--site frontier" in torch.advice
    assert "should work, 1 warning" in verdict_text(found.findings)
    assert about(check(env, "workstation"), "torch")[0].severity == "note"
    put_torch(env, "2.10.0+cpu")
    assert "will not work as it is: 1 error" in verdict_text(check(env, "frontier", None).findings)


def test_a_torch_beneath_is_not_missed(env: Path) -> None:
    facts = msgspec.structs.replace(inspect_env(str(env)), beneath=True)
    other = check_env(facts, load_site("aurora"), None, EnvLocation())
    assert "must come from the module beneath" in about(other, "torch")[0].evidence
    seen = msgspec.structs.replace(facts, beneath_packages={"torch": "2.8.0"})
    assert about(check_env(seen, load_site("aurora"), None, EnvLocation()), "torch") == []


def test_the_driver_is_read_from_what_the_kernel_says() -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12\n"
    assert parse_nvidia_version(text) == "535.129.03"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    assert parse_nvidia_version(opened) == "580.65.06"
    assert parse_nvidia_version("") == ""
