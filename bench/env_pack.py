"""Pack an environment with windlass, venv-pack and conda-pack, and unpack it with windlass and tar, side by side.

    python3 bench/env_pack.py ENV --tools DIR [--repeats 3] --out results/env/pack.json

ENV is a venv. DIR has the programs venv-pack and conda-pack. conda-pack gets a copy of ENV in conda's layout: with the
interpreter in it and an empty history. The programs take turns. Each figure is the best of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WINDLASS = (sys.executable, "-m", "windlass")


def measured(argv: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Wall time and CPU time of a command and of all its children."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WINDLASS_RUNS": str(folder / "runs")}
    began, before = time.monotonic(), os.times()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, check=False, text=True, timeout=1800)
    wall, after = time.monotonic() - began, os.times()
    if done.returncode != 0:
        raise SystemExit(f"{argv}: {done.stderr[-2000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def conda_twin(env: Path, twin: Path) -> None:
    """The environment in conda's layout: links between its files stay."""
    subprocess.run(["cp", "-a", str(env), str(twin)], check=True)
    python = next(path for path in sorted((twin / "bin").glob("python3.*")) if path.is_symlink())
    real = os.path.realpath(env / "bin" / "python")
    for name in ("python", "python3", python.name):
        (twin / "bin" / name).unlink(missing_ok=True)
    shutil.copy2(real, twin / "bin" / python.name)
    for name in ("python", "python3"):
        (twin / "bin" / name).symlink_to(python.name)
    (twin / "pyvenv.cfg").unlink()
    for script in (twin / "bin").iterdir():
        if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            script.write_bytes(script.read_bytes().replace(os.fsencode(env), os.fsencode(twin)))
    (twin / "bin" / "activate").unlink(missing_ok=True)
    (twin / "conda-meta").mkdir()
    (twin / "conda-meta" / "history").touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--unpack-only", action="store_true", help="for large environments")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    env = args.env.absolute()
    work = Path(tempfile.mkdtemp(prefix="env-pack-", dir=env.parent))
    try:
        twin = work / "twin"
        if not args.unpack_only:
            conda_twin(env, twin)
        out = {name: str(work / f"{name}.tar.gz") for name in ("windlass", "venv-pack", "windlass-conda", "conda-pack")}
        zst = str(work / "env.tar.zst")
        tools = args.tools.absolute()
        packs: dict[str, tuple[str, ...]] = {
            "windlass": (*WINDLASS, "env", "pack", str(env), "--force", "-o", out["windlass"]),
            "venv-pack": (str(tools / "venv-pack"), "-q", "-f", "-p", str(env), "-o", out["venv-pack"]),
            "windlass-conda": (*WINDLASS, "env", "pack", str(twin), "--force", "-o", out["windlass-conda"]),
            "conda-pack": (str(tools / "conda-pack"), "-q", "-f", "-p", str(twin), "-o", out["conda-pack"]),
            "windlass-zst": (*WINDLASS, "env", "pack", str(env), "--force", "-o", zst),
        }
        runs: dict[str, list[dict[str, float]]] = {}
        load = os.getloadavg()
        if args.unpack_only:
            packs, out = {"windlass-zst": packs["windlass-zst"]}, {}
        for _ in range(1 if args.unpack_only else args.repeats):
            for name, argv in packs.items():
                runs.setdefault(name, []).append(measured(argv, work))
        for number in range(args.repeats):
            (work / f"tar{number}").mkdir()
            untar = ("tar", "--zstd", "-xf", zst, "-C", str(work / f"tar{number}"))
            stage = (*WINDLASS, "stage", zst, "--extract", "--to", str(work / f"stage{number}"))
            for name, argv in (("tar --zstd", untar), ("windlass stage", stage)):
                runs.setdefault(name, []).append(measured(argv, work))
            for name in ("tar", "stage"):
                shutil.rmtree(work / f"{name}{number}")
        record = _record(args, env, runs, load)
        record["size_bytes"] = {name: Path(path).stat().st_size for name, path in out.items()}
        record["size_bytes"]["windlass-zst"] = Path(zst).stat().st_size
    finally:
        shutil.rmtree(work, ignore_errors=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: record[name] for name in ("best", "size_bytes", "load_before")}, indent=1))
    return 0


def _record(
    args: argparse.Namespace, env: Path, runs: dict[str, list[dict[str, float]]], load: tuple[float, float, float]
) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, check=False, text=True
    ).stdout
    files = [path.lstat() for path in env.rglob("*") if path.is_file() and not path.is_symlink()]
    linked = {status.st_ino for status in files if status.st_nlink > 1}
    versions = [
        subprocess.run([args.tools / name, "--version"], capture_output=True, check=False, text=True).stdout.strip()
        for name in ("venv-pack", "conda-pack")
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.strip(),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load_before": [round(one, 1) for one in load],
        "versions": versions,
        "environment": {"files": len(files), "bytes": sum(s.st_size for s in files), "files_with_links": len(linked)},
        "best": {name: {key: min(run[key] for run in each) for key in each[0]} for name, each in runs.items()},
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
