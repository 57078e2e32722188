"""Environments that were moved, damaged or mixed, each with the findings that the check must have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from env_corpus.make import HOST, MACHINE, MINOR, OLDER, OTHER, OWN, PACKAGES, EnvCase, Target, Workshop
from windlass.build.envs.check import HostFacts
from windlass.build.envs.installed import SearchPath

FAULTS: list[EnvCase] = []


def fault(group: str, what: str, *expected: str) -> Callable[[Callable[[Workshop], Target]], None]:
    return lambda build: FAULTS.append(EnvCase(group, what, frozenset(expected), build))


def _one(shop: Workshop) -> Path:
    env = shop.venv()
    shop.add(env, "alpha", files={"alpha/core.py": "pass\n", "alpha/table.json": "{}\n"}, script=True)
    return env


def _compiled(shop: Workshop, **options: str) -> tuple[Path, str]:
    env, name = shop.venv(), f"alpha/{shop.extension(options.get('python', OWN), libc=options.get('libc', 'gnu'))}"
    tag = options.get("tag", f"{OWN}-{OWN}-manylinux_2_17_{MACHINE}")
    shop.add(env, "alpha", files={name: shop.library("core.so")}, tag=tag)
    return env, name


@fault("moved", "renamed", "error moved")
def _(shop: Workshop) -> Target:
    return Target(_one(shop).rename(shop.folder / "renamed"))


@fault("moved", "copied, the original is still there", "error moved")
def _(shop: Workshop) -> Target:
    return Target(shutil.copytree(_one(shop), shop.folder / "copy", symlinks=True))


@fault("moved", "copied without any script, the original is still there", "error moved")
def _(shop: Workshop) -> Target:
    return Target(shutil.copytree(shop.venv(), shop.folder / "copy", symlinks=True))


@fault("moved", "copied, made by uv (its activation quotes the path)", "error moved")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / "bin" / "activate").write_text(f"VIRTUAL_ENV='{env}'\nexport VIRTUAL_ENV\n")
    return Target(shutil.copytree(env, shop.folder / "copy", symlinks=True))


@fault("moved", "an environment of conda, copied", "error moved")
def _(shop: Workshop) -> Target:
    env = shop.conda()
    shop.add(env, "alpha", script=True)
    return Target(shutil.copytree(env, shop.folder / "copy", symlinks=True))


@fault("moved", "copied, the original was removed later", "error moved")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    copy = shutil.copytree(env, shop.folder / "copy", symlinks=True)
    shutil.rmtree(env)
    return Target(copy)


@fault("moved", "the base interpreter is gone", "error python")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to("/opt/modules/python/bin/python3")
    return Target(env)


@fault("moved", "the base interpreter became another version", "error python")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    other = shop.folder / "python3.99"
    shutil.copy2((env / "bin" / "python").resolve(), other)
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to(other)
    return Target(env)


@fault("moved", "the folder of an editable install is gone", "error paths")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / PACKAGES / "__editable__.mine-1.0.pth").write_text(f"{shop.folder}/gone\n")
    return Target(env)


@fault("moved", "an editable install lies outside", "warning paths")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / PACKAGES / "__editable__.mine-1.0.pth").write_text(shop.other_folder("src", **{"mine.py": ""}) + "\n")
    return Target(env)


@fault("broken", "a source file was deleted", "error files")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    (env / PACKAGES / "alpha" / "core.py").unlink()
    return Target(env)


@fault("broken", "a data file was purged", "error files")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    (env / PACKAGES / "alpha" / "table.json").unlink()
    return Target(env)


@fault("broken", "the folder of a package was deleted, its metadata is there", "error files")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    shutil.rmtree(env / PACKAGES / "alpha")
    return Target(env)


@fault("broken", "a script of a package was deleted", "error files")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    (env / "bin" / "alpha").unlink()
    return Target(env)


@fault("broken", "a compiled module was deleted", "error files")
def _(shop: Workshop) -> Target:
    env, name = _compiled(shop)
    (env / PACKAGES / name).unlink()
    return Target(env)


@fault("broken", "a source file is empty after a full disk", "error files")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    (env / PACKAGES / "alpha" / "core.py").write_text("")
    return Target(env)


@fault("broken", "a library is empty after a full disk", "error files", "error libraries")
def _(shop: Workshop) -> Target:
    env, name = _compiled(shop)
    (env / PACKAGES / name).write_bytes(b"")
    return Target(env)


@fault("broken", "a library is truncated in its headers", "error libraries")
def _(shop: Workshop) -> Target:
    env, name = _compiled(shop)
    (env / PACKAGES / name).write_bytes((env / PACKAGES / name).read_bytes()[:200])
    return Target(env)


@fault("broken", "a library lacks its last part", "error libraries")
def _(shop: Workshop) -> Target:
    env, name = _compiled(shop)
    data = (env / PACKAGES / name).read_bytes()
    (env / PACKAGES / name).write_bytes(data[: len(data) * 9 // 10])
    return Target(env)


@fault("broken", "a requirement is missing", "warning packages")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", needs=["beta>=2"])
    return Target(env)


@fault("broken", "a requirement is too old", "warning packages")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", needs=["beta>=2"])
    shop.add(env, "beta", "1.9")
    return Target(env)


@fault("broken", "a requirement for newer patch releases of Python is missing", "warning packages")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    text = (env / "pyvenv.cfg").read_text().splitlines()
    kept = [line for line in text if not line.startswith("version")]
    (env / "pyvenv.cfg").write_text("\n".join([*kept, f"version = 3.{MINOR}.9"]) + "\n")
    shop.add(env, "alpha", needs=[f"beta; python_full_version >= '3.{MINOR}.2'"])
    return Target(env)


@fault("broken", "a package is installed in two versions", "error packages")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", "1.0")
    shop.add(env, "alpha", "2.0")
    return Target(env)


@fault("broken", "bin/python is gone", "error python")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / "bin" / "python").unlink()
    return Target(env)


@fault("broken", "torch without version.py", "error files", "error torch")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (shop.torch(env, "2.10.0") / "version.py").unlink()
    return Target(env)


@fault("broken", "a library that an extension is linked with is nowhere", "warning loader")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    gone = shop.library("libhdf5-gone.so.3")
    shop.add(env, "alpha", files={f"alpha/{shop.extension()}": shop.library("core.so", needs=gone)})
    return Target(env)


@fault("mixed", "a wheel for an older Python", "error abi")
def _(shop: Workshop) -> Target:
    return Target(_compiled(shop, python=OLDER, tag=f"{OLDER}-{OLDER}-manylinux_2_17_{MACHINE}")[0])


@fault("mixed", "an extension for an older Python, copied by hand", "error abi")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / PACKAGES / "alpha").mkdir()
    shutil.copy2(shop.library("core.so"), env / PACKAGES / "alpha" / shop.extension(OLDER))
    return Target(env)


@fault("mixed", "a wheel for Python without the GIL", "error abi")
def _(shop: Workshop) -> Target:
    return Target(_compiled(shop, python=f"{OWN}t", tag=f"{OWN}-{OWN}t-manylinux_2_17_{MACHINE}")[0])


@fault("mixed", "a wheel for musl", "error abi")
def _(shop: Workshop) -> Target:
    return Target(_compiled(shop, libc="musl", tag=f"{OWN}-{OWN}-musllinux_1_2_{MACHINE}")[0])


@fault("mixed", "a library for musl, copied by hand", "error abi")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / PACKAGES / "alpha").mkdir()
    library = shop.library("core.so", needs=shop.library(f"libc.musl-{MACHINE}.so.1"))
    shutil.copy2(library, env / PACKAGES / "alpha" / "core.so")
    return Target(env)


@fault("mixed", "a wheel for another machine", "error abi", "error machine")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    content = shop.for_machine(shop.library("core.so"), OTHER)
    files = {f"alpha/{shop.extension(machine=OTHER)}": content}
    shop.add(env, "alpha", files=files, tag=f"{OWN}-{OWN}-manylinux_2_17_{OTHER}")
    return Target(env)


@fault("mixed", "a library for another machine, copied by hand", "error machine")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / PACKAGES / "alpha.so").write_bytes(shop.for_machine(shop.library("core.so"), OTHER))
    return Target(env)


@fault("mixed", "packages for the Python that the venv had before its upgrade", "error abi")
def _(shop: Workshop) -> Target:
    env = _one(shop)
    old = env / f"lib/python3.{MINOR - 1}/site-packages"
    old.parent.mkdir()
    (env / PACKAGES).rename(old)
    (env / PACKAGES).mkdir()
    return Target(env)


@fault("mixed", "a library that needs a newer C library", "error glibc")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    libc = shop.library("libc.so.6", versions=("GLIBC_2.99",))
    shop.add(env, "alpha", files={f"alpha/{shop.extension()}": shop.library("core.so", needs=libc)})
    return Target(env)


@fault("mixed", "mpi4py built with MPICH, for Frontier", "error mpi4py")
def _(shop: Workshop) -> Target:
    return _mpi(shop, "libmpi.so.12")


@fault("mixed", "mpi4py built with Open MPI, for Frontier", "error mpi4py")
def _(shop: Workshop) -> Target:
    return _mpi(shop, "libmpi.so.40")


def _mpi(shop: Workshop, library: str) -> Target:
    env = shop.venv()
    shop.torch(env, "2.10.0+rocm7.1", hip="7.1.1")
    files = {"mpi4py/MPI.abi3.so": shop.library("MPI.so", needs=shop.library(library))}
    shop.add(env, "mpi4py", files=files)
    return Target(env, "frontier", None)


@fault("mixed", "mpi4py as a wheel for several MPIs, for Frontier", "warning mpi4py")
def _(shop: Workshop) -> Target:
    env, core = shop.venv(), shop.library("core.so")
    shop.torch(env, "2.10.0+rocm7.1", hip="7.1.1")
    shop.add(env, "mpi4py", files={"mpi4py/MPI.mpich.abi3.so": core, "mpi4py/MPI.openmpi.abi3.so": core})
    return Target(env, "frontier", None)


@fault("mixed", "PYTHONPATH hides a package", "warning hidden")
def _(shop: Workshop) -> Target:
    more = shop.other_folder("more", **{"alpha__slash____init__.py": ""})
    return Target(_one(shop), search=SearchPath(modules=(more,)))


@fault("mixed", "a file of the current folder hides a module of Python", "warning hidden")
def _(shop: Workshop) -> Target:
    return Target(_one(shop), search=SearchPath(current=shop.other_folder("project", **{"random.py": ""})))


@fault("mixed", "a file of the current folder hides a package", "warning hidden")
def _(shop: Workshop) -> Target:
    return Target(_one(shop), search=SearchPath(current=shop.other_folder("project", **{"alpha.py": ""})))


@fault("mixed", "pip install --user hides a package of conda", "warning hidden")
def _(shop: Workshop) -> Target:
    env = shop.conda()
    shop.add(env, "alpha")
    user = shop.other_folder("local", **{f"python3.{MINOR}__slash__site-packages__slash__alpha.py": ""})
    return Target(env, search=SearchPath(user=user))


@fault("mixed", "LD_LIBRARY_PATH brings an old libstdc++", "error loader")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    new = shop.library("libstdc++.so.6", versions=("GLIBCXX_3.4.20", "GLIBCXX_3.4.99"))
    old = shop.library("libstdc++.so.6", versions=("GLIBCXX_3.4.20",))
    shop.add(env, "alpha", files={f"alpha/{shop.extension()}": shop.library("core.so", needs=new)})
    return Target(env, search=SearchPath(libraries=(str(old.parent),)))


@fault("mixed", "two different copies of libnccl", "warning copies")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    for name in ("alpha", "beta"):
        shop.add(env, name, files={f"{name}/lib/libnccl.so.2": shop.library("libnccl.so.2", salt=name)})
    return Target(env)


@fault("mixed", "torch for CUDA on a site with AMD devices", "error torch")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.torch(env, "2.10.0+cu128", cuda="12.8")
    return Target(env, "frontier", None)


@fault("mixed", "torch for a newer CUDA than the driver", "error torch")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.torch(env, "2.10.0+cu130", cuda="13.0")
    return Target(env, host=HostFacts(machine=MACHINE, glibc="2.36", vendor="nvidia", driver="550.54.15"))


@fault("mixed", "two network plugins of NCCL", "warning plugin")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    for name in ("alpha", "beta"):
        shop.add(env, name, files={f"{name}/libnccl-net.so": shop.library("libnccl-net.so")})
    return Target(env)


@fault("mixed", "made for another site", "warning site")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    (env / "windlass-env.json").write_text('{"site": "aurora"}')
    return Target(env, host=HOST)
