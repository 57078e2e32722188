#!/usr/bin/env python3
"""Would a release work? release_check.py [--no-demo] [--record FILE]

Builds sdist and wheel (the wheel from the sdist), looks whether all of the package is inside, and tries the wheel by
pip under every supported Python that is here, by pipx and uvx, and as a zip application, each in a fresh environment;
then runs the demo from the wheel. Package registries have to be reachable. Leaves nothing but the record.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from interpreters import LOGIN, interpreters

ROOT = Path(__file__).resolve().parents[1]
HELLO = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
STEP_S = 600
KEEP = ("PATH", "HOME", "LANG", "TERM", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Release:
    """The work folder, what was built, and what each step showed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dist = folder / "dist"
        self.tools = folder / "tools" / "bin"
        self.rows: list[tuple[str, bool, str]] = []

    @property
    def wheel(self) -> Path:
        return next(self.dist.glob("*.whl"))

    @property
    def sdist(self) -> Path:
        return next(self.dist.glob("*.tar.gz"))

    def run(self, *argv: str | Path, cwd: Path | None = None) -> str:
        """The output of a command; raises with it where the command fails."""
        words = [str(word) for word in argv]
        done = subprocess.run(
            words,
            cwd=cwd or self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Nothing of windlass or of a virtual environment; caches and configuration in the work folder."""
        kept = {name: value for name, value in os.environ.items() if name in KEEP or name.startswith(("PIP_", "UV_"))}
        return {
            **kept,
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "WINDLASS_CONFIG": str(self.folder / "no-config"),
            "WINDLASS_RUNS": str(self.folder / "runs"),
            "PIPX_HOME": str(self.folder / "pipx"),
            "PIPX_BIN_DIR": str(self.folder / "pipx-bin"),
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def step(self, name: str, act: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            said, well = act(), True
        except (RuntimeError, OSError, StopIteration, AssertionError, subprocess.TimeoutExpired) as error:
            said, well = str(error) or type(error).__name__, False
        self.rows.append((name, well, said.strip()))
        print(f"{'ok  ' if well else 'FAIL'} {name}: {said.strip()} ({time.monotonic() - began:.0f} s)", flush=True)

    def venv(self, name: str, python: str, *wanted: str | Path) -> Path:
        folder = self.folder / name
        self.run(python, "-m", "venv", folder)
        if wanted:
            self.run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted)
        return folder / "bin"


def build(release: Release) -> str:
    """From the files that git knows, as a fresh clone has them."""
    source = release.folder / "source"
    source.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    release.run(release.tools / "python", "-m", "build", "--outdir", release.dist, source)
    return f"{release.sdist.name}, {release.wheel.name}"


def contents(release: Release) -> str:
    """Every file of the package is in both, and nothing else of the repository in the wheel."""
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "windlass").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(release.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(release.sdist) as sdist:
        packed = {name.partition("/src/")[2] for name in sdist.getnames() if "/src/windlass/" in name}
    missing = sorted((wanted - held) | (wanted - packed))
    foreign = sorted(held - wanted)
    assert not missing, f"missing: {', '.join(missing[:8])}"
    assert not foreign, f"not of the package: {', '.join(foreign[:8])}"
    return f"{len(held)} files, {sum(name.endswith('.toml') for name in held)} of them the catalog and other tables"


def smoke(release: Release, name: str, *windlass: str | Path) -> str:
    """The commands that a newcomer types first, in an empty folder."""
    cwd = release.folder / f"try-{name}"
    cwd.mkdir()
    (cwd / "hello.py").write_text(HELLO)
    version = release.run(*windlass, "--version", cwd=cwd).strip().splitlines()[-1]
    assert "lumi" in release.run(*windlass, "sites", "list", cwd=cwd)
    assert "srun" in release.run(*windlass, "plan", "--site", "lumi", "--nodes", "2", cwd=cwd)
    said = release.run(*windlass, "run", "--ranks-per-node", "2", "--show", "all", "hello.py", cwd=cwd)
    assert "rank 1 of 2" in said, said
    release.run(*windlass, "doctor", "--quick", cwd=cwd)
    return f"{version}: sites, plan, run with 2 ranks, doctor"


def under_each_python(release: Release) -> None:
    for version, python in interpreters(LOGIN).items():
        release.step(
            f"pip, Python {version}",
            lambda v=version, p=python: smoke(  # type: ignore[misc]
                release, v, release.venv(f"venv-{v}", p, release.wheel) / "windlass"
            ),
        )


def sdist(release: Release) -> str:
    return smoke(release, "sdist", release.venv("venv-sdist", sys.executable, release.sdist) / "windlass")


def pipx(release: Release) -> str:
    release.run(release.tools / "pipx", "install", "--python", sys.executable, release.wheel)
    return smoke(release, "pipx", release.folder / "pipx-bin" / "windlass")


def uvx(release: Release) -> str:
    return smoke(release, "uvx", release.tools / "uvx", "--python", sys.executable, "--from", release.wheel, "windlass")


def zip_application(release: Release) -> str:
    """Built once, started by every Python that is here."""
    archive = release.dist / "windlass.pyz"
    release.run(release.tools / "python", ROOT / "scripts" / "make_zipapp.py", release.wheel, archive)
    found = interpreters(LOGIN)
    for version, python in found.items():
        smoke(release, f"zip-{version}", python, archive)
    return f"{archive.stat().st_size / 1e6:.1f} MB, started by Python {', '.join(found)}"


def demo(release: Release) -> str:
    """`make demo`, from the wheel."""
    text = (ROOT / "pyproject.toml").read_text()
    torch = text.partition('"torch==')[2].partition('"')[0]
    bin_ = release.venv("venv-demo", sys.executable, release.wheel, f"torch=={torch}", "numpy")
    cwd = release.folder / "demo"
    shutil.copytree(ROOT / "examples", cwd / "examples")
    lines = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0].splitlines()
    commands = [line.strip().removeprefix("$(BIN)/") for line in lines if line.strip().startswith("$(BIN)/windlass")]
    assert commands, "the Makefile's demo starts no windlass"
    for command in commands:
        said = release.run(bin_ / "windlass", *shlex.split(command)[1:], cwd=cwd)
    return said.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-demo", action="store_true", help="without torch and the demo")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was seen there, as a table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="windlass-release-") as name:
        release = Release(Path(name))
        release.step(
            "tools", lambda: str(release.venv("tools", sys.executable, "build", "pipx", "uv") and "build, pipx, uv")
        )
        release.step("build", lambda: build(release))
        release.step("contents", lambda: contents(release))
        under_each_python(release)
        release.step("sdist", lambda: sdist(release))
        release.step("pipx", lambda: pipx(release))
        release.step("uvx", lambda: uvx(release))
        release.step("zip application", lambda: zip_application(release))
        if not args.no_demo:
            release.step("demo", lambda: demo(release).replace(str(release.folder), "…"))
    if args.record:
        args.record.write_text(table(release))
    failed = [name for name, well, _ in release.rows if not well]
    print(f"failed: {', '.join(failed)}" if failed else "all is well")
    return 1 if failed else 0


def table(release: Release) -> str:
    rows = []
    for name, well, said in release.rows:
        line = said.splitlines()[0] if said else ""
        rows.append(f"| {name} | {'' if well else '**failed**: '}{line} |")
    head = f"{time.strftime('%Y-%m-%d')}, `make release-check` (`scripts/release_check.py`) on {_system()}."
    top = ["# The release, tried in fresh environments", "", head, "", "| step | what was seen |", "|---|---|"]
    return "\n".join([*top, *rows]) + "\n"


def _system() -> str:
    return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
