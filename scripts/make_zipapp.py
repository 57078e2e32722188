#!/usr/bin/env python3
"""Makes windlass.pyz of a wheel: make_zipapp.py WHEEL OUT [--pythons 3.10,3.11,…] [--machines x86_64,aarch64].

One file for several Pythons and machines: it holds the compiled dependencies for each of them, as PyPI has them. Runs
with the pip of this interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipapp
import zipfile
from pathlib import Path

MAIN = Path(__file__).parent / "zipapp_main.py"
MARK = "windlass-zipapp"


def requirements(wheel: Path, version: str) -> list[str]:
    """What the wheel asks for under this Python."""
    with zipfile.ZipFile(wheel) as held:
        (name,) = (name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
        lines = held.read(name).decode().splitlines()
    found = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    old = tuple(map(int, version.split("."))) < (3, 11)
    return [need.partition(";")[0].strip() for need in found if "python_version" not in need or old]


def dependencies(wheel: Path, version: str, machine: str, target: Path) -> None:
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"),
            *("--only-binary=:all:", f"--python-version={version}", *platforms, "--target", str(target)),
            *requirements(wheel, version),
        ],
        check=True,
        timeout=300,
    )


def digest(folder: Path) -> str:
    made = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            made.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return made.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pythons", default="3.10,3.11,3.12,3.13")
    parser.add_argument("--machines", default="x86_64,aarch64")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        staging = Path(name)
        with zipfile.ZipFile(args.wheel) as wheel:
            wheel.extractall(staging)
        for version in args.pythons.split(","):
            for machine in args.machines.split(","):
                tag = f"cpython-{version.replace('.', '')}-{machine}"
                dependencies(args.wheel, version, machine, staging / "deps" / tag)
        (staging / "__main__.py").write_text(MAIN.read_text())
        (staging / MARK).write_text(digest(staging) + "\n")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(staging, args.out, interpreter="/usr/bin/env python3", compressed=True)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
