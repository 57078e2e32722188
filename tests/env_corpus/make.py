"""Makes small environments: a real venv, packages with their metadata, and libraries by the C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windlass.build.envs.check import EnvCheck, EnvLocation, HostFacts, check_env
from windlass.build.envs.inspect import inspect_env
from windlass.build.envs.installed import SearchPath
from windlass.sites.catalog import load_site

MINOR = sys.version_info.minor
OWN, OLDER = f"cp3{MINOR}", f"cp3{MINOR - 1}"
MACHINE = os.uname().machine
OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"
PACKAGES = f"lib/python3.{MINOR}/site-packages"
HOST = HostFacts(machine=MACHINE, glibc="2.36")
_MACHINES = {"x86_64": 62, "aarch64": 183}


@dataclass(frozen=True)
class Target:
    """What is checked, where, and from which shell."""

    env: Path
    site: str = "workstation"
    host: HostFacts | None = HOST
    search: SearchPath = field(default_factory=SearchPath)

    def check(self) -> EnvCheck:
        facts = inspect_env(str(self.env), self.search)
        return check_env(facts, load_site(self.site), self.host, EnvLocation())


@dataclass(frozen=True)
class EnvCase:
    group: str
    what: str
    expected: frozenset[str]
    """Errors and warnings, each as `error KIND`. Empty for a healthy environment."""
    build: Callable[[Workshop], Target]


def said(check: EnvCheck) -> frozenset[str]:
    return frozenset(f"{f.severity} {f.kind}" for f in check.findings if f.severity in ("error", "warning"))


class Workshop:
    """Makes environments in a folder. Compiled libraries are kept for all cases of a run."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder, self._compiled = folder, compiled
        folder.mkdir(parents=True)
        compiled.mkdir(parents=True, exist_ok=True)

    def venv(self, name: str = "env", system: bool = False) -> Path:
        path = self.folder / name
        venv.EnvBuilder(symlinks=True, system_site_packages=system).create(path)
        return path

    def conda(self, name: str = "env") -> Path:
        """An environment as conda makes it: its own interpreter, and records of its packages."""
        env = self.folder / name
        (env / PACKAGES).mkdir(parents=True)
        (env / "bin").mkdir()
        shutil.copy2(os.path.realpath(sys.executable), env / "bin" / f"python3.{MINOR}")
        for link in ("python", "python3"):
            (env / "bin" / link).symlink_to(f"python3.{MINOR}")
        (env / "conda-meta").mkdir()
        (env / "conda-meta" / f"python-3.{MINOR}.4-h1.json").write_text("{}")
        return env

    def add(
        self,
        env: Path,
        name: str,
        version: str = "1.0",
        *,
        files: Mapping[str, str | bytes | Path] | None = None,
        tag: str = "py3-none-any",
        needs: Iterable[str] = (),
        script: bool = False,
        by: str = "pip",
    ) -> Path:
        """Install a package as pip does: files, metadata, RECORD with sizes, and a script that starts its Python."""
        packages, info = env / PACKAGES, f"{name}-{version}.dist-info"
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        held: dict[str, str | bytes | Path] = {f"{name}/__init__.py": f"name = {name!r}\n"}
        held |= dict(files or {})
        held |= {
            f"{info}/METADATA": "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
            f"{info}/INSTALLER": by + "\n",
        }
        if script:
            held[f"../../../bin/{name}"] = f"#!{env}/bin/python\nimport {name}\n"
        rows = []
        for inside, content in held.items():
            path = packages / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            rows.append(f"{inside},sha256=x,{path.stat().st_size}")
        if script:
            (env / "bin" / name).chmod(0o755)
        (packages / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
        return packages / name

    def torch(self, env: Path, version: str, **build: str) -> Path:
        lines = [f"__version__ = '{version}'", *(f"{key} = '{value}'" for key, value in build.items())]
        return self.add(env, "torch", version, files={"torch/version.py": "\n".join(lines) + "\n"})

    def library(
        self, soname: str, *, versions: Iterable[str] = (), needs: Path | None = None, salt: str = "", path: str = ""
    ) -> Path:
        """Compile a library. `versions` are the symbol versions that it offers, `needs` a library that it uses."""
        key = "-".join([soname, *versions, needs.parent.name if needs else "", salt, path.replace("/", "_")])
        target = self._compiled / key / soname
        if target.exists():
            return target
        target.parent.mkdir(parents=True)
        source = target.parent / "source.c"
        calls = "f();" if needs else ""
        own = "h" if needs else "f"
        source.write_text(f'const char *salt = "{salt}";\nvoid f(void);\nvoid {own}(void) {{ {calls} }}\n')
        argv = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(target), str(source)]
        if versions:
            script = target.parent / "versions"
            *before, last = versions
            script.write_text("".join(f"{one} {{ }};\n" for one in before) + f"{last} {{ global: f; }};\n")
            argv.append(f"-Wl,--version-script,{script}")
        argv += [str(needs)] if needs else []
        argv += [f"-Wl,-rpath,{path}"] if path else []
        subprocess.run(argv, check=True, timeout=60)
        return target

    def for_machine(self, library: Path, machine: str) -> bytes:
        data = bytearray(library.read_bytes())
        data[18:20] = _MACHINES[machine].to_bytes(2, "little")
        return bytes(data)

    def extension(self, python: str = OWN, machine: str = MACHINE, libc: str = "gnu") -> str:
        return f"core.cpython-{python.removeprefix('cp')}-{machine}-linux-{libc}.so"

    def other_folder(self, name: str, **files: str) -> str:
        for inside, text in files.items():
            path = self.folder / name / inside.replace("__slash__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.folder / name).mkdir(exist_ok=True)
        return str(self.folder / name)
