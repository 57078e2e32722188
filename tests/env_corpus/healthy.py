"""Environments that work. The check must not raise an alarm for any of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from env_corpus.make import HOST, MACHINE, MINOR, OLDER, OTHER, OWN, PACKAGES, EnvCase, Target, Workshop
from windlass.build.envs.installed import SearchPath
from windlass.build.envs.pack import pack_env

HEALTHY: list[EnvCase] = []


def healthy(what: str) -> Callable[[Callable[[Workshop], Target]], None]:
    return lambda build: HEALTHY.append(EnvCase("healthy", what, frozenset(), build))


@healthy("a new venv without packages")
def _(shop: Workshop) -> Target:
    return Target(shop.venv())


@healthy("packages that need each other")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", needs=["beta>=2", "gamma; extra == 'min-versions'"], script=True)
    shop.add(env, "beta", "2.1")
    return Target(env)


@healthy("a compiled package for this Python")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    files = {f"alpha/{shop.extension()}": shop.library("core.so")}
    shop.add(env, "alpha", files=files, tag=f"{OWN}-{OWN}-manylinux_2_17_{MACHINE}")
    return Target(env)


@healthy("a compiled package for all Pythons (abi3)")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(
        env, "alpha", files={"alpha/core.abi3.so": shop.library("core.so")}, tag=f"cp38-abi3-manylinux2014_{MACHINE}"
    )
    return Target(env)


@healthy("an environment of conda")
def _(shop: Workshop) -> Target:
    env = shop.conda()
    shop.add(env, "alpha", by="conda", tag=f"{OLDER}-{OLDER}-linux_{MACHINE}", script=True)
    (env / PACKAGES / "alpha" / "__init__.py").unlink()  # conda's own records count, not RECORD
    return Target(env)


@healthy("packed, unpacked in another folder, the original removed")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", script=True)
    archive = shop.folder / "env.tar"
    pack_env(str(env), str(archive), with_python=False, environ=dict(os.environ))
    target = shop.folder / "node" / "env"
    target.mkdir(parents=True)
    subprocess.run(["tar", "-xf", archive, "-C", target], check=True, timeout=60)
    shutil.rmtree(env)
    return Target(target)


@healthy("a need that holds only for older patch releases of Python")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    config = (env / "pyvenv.cfg").read_text().splitlines()
    kept = [line for line in config if not line.startswith("version")]
    (env / "pyvenv.cfg").write_text("\n".join([*kept, f"version = 3.{MINOR}.9"]) + "\n")
    shop.add(env, "alpha", needs=[f"timeouts; python_full_version < '3.{MINOR}.3'"])
    return Target(env)


@healthy("tests and stubs of a package removed to save files")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    package = shop.add(env, "alpha", files={"alpha/tests/test_a.py": "pass\n", "alpha/core.pyi": "x: int\n"})
    shutil.rmtree(package / "tests")
    (package / "core.pyi").unlink()
    return Target(env)


@healthy("compiled files and a stripped library differ from RECORD")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    name = f"alpha/{shop.extension()}"
    shop.add(env, "alpha", files={name: shop.library("core.so")}, tag=f"{OWN}-{OWN}-linux_{MACHINE}")
    subprocess.run(["strip", env / PACKAGES / name], check=True, timeout=60)
    return Target(env)


@healthy("a debugger with helper libraries for several machines")
def _(shop: Workshop) -> Target:
    env, core = shop.venv(), shop.library("core.so")
    shop.add(env, "alpha", files={"alpha/attach_own.so": core, "alpha/attach_other.so": shop.for_machine(core, OTHER)})
    return Target(env)


@healthy("a package with extensions for several Pythons")
def _(shop: Workshop) -> Target:
    env, core = shop.venv(), shop.library("core.so")
    shop.add(env, "alpha", files={f"alpha/{shop.extension(OLDER)}": core, f"alpha/{shop.extension()}": core})
    return Target(env)


@healthy("the same libgomp in two packages")
def _(shop: Workshop) -> Target:
    env, gomp = shop.venv(), shop.library("libgomp-a34b3233.so.1")
    for name in ("alpha", "beta"):
        shop.add(env, name, files={f"{name}.libs/libgomp-a34b3233.so.1": gomp})
    return Target(env)


@healthy("reached through a link to its folder")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha", script=True)
    (shop.folder / "link").symlink_to(env)
    return Target(shop.folder / "link")


@healthy("made through a link, checked at the real path")
def _(shop: Workshop) -> Target:
    (shop.folder / "real").mkdir()
    (shop.folder / "link").symlink_to("real")
    env = shop.venv("link/env")
    shop.add(env, "alpha", script=True)
    return Target(shop.folder / "real" / "env")


@healthy("PYTHONPATH with modules of other names")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha")
    return Target(env, search=SearchPath(modules=(shop.other_folder("more", **{"mine.py": "", "alpha.txt": ""}),)))


@healthy("started in a project with its own modules and tests")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha")
    names = {"train.py": "", "utils.py": "", "tests__slash____init__.py": "", "alpha__slash__out.txt": ""}
    return Target(env, search=SearchPath(current=shop.other_folder("project", **names)))


@healthy("LD_LIBRARY_PATH with a libstdc++ that is new enough")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    new = shop.library("libstdc++.so.6", versions=("GLIBCXX_3.4.20", "GLIBCXX_3.4.99"))
    shop.add(env, "alpha", files={f"alpha/{shop.extension()}": shop.library("core.so", needs=new)})
    return Target(env, search=SearchPath(libraries=(str(new.parent),)))


@healthy("mpi4py built with Cray MPICH, for Frontier")
def _(shop: Workshop) -> Target:
    env, mpi = shop.venv(), shop.library("libmpi_gnu_123.so.12")
    shop.torch(env, "2.10.0+rocm7.1", hip="7.1.1")
    shop.add(env, "mpi4py", files={"mpi4py/MPI.abi3.so": shop.library("MPI.so", needs=mpi)})
    return Target(env, "frontier", None)


@healthy("one of two packages that share a namespace uninstalled")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    for name in ("alpha", "beta"):
        shop.add(env, name, files={"nvidia/__init__.py": "", f"nvidia/{name}/run.py": "pass\n"})
    (env / PACKAGES / "nvidia" / "__init__.py").unlink()
    return Target(env)


@healthy("remains of an interrupted pip, which Python ignores")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.add(env, "alpha")
    info = env / PACKAGES / "alpha-1.0.dist-info"
    shutil.copytree(info, env / PACKAGES / "~lpha-1.0.dist-info")
    return Target(env)


@healthy("on top of a module's packages, whose versions fit")
def _(shop: Workshop) -> Target:
    env = shop.venv(system=True)
    shop.add(env, "alpha", needs=["gone-extra; extra == 'all'", "wheel; sys_platform == 'win32'"])
    return Target(env)


@healthy("torch for a driver that is new enough")
def _(shop: Workshop) -> Target:
    env = shop.venv()
    shop.torch(env, "2.10.0+cu128", cuda="12.8")
    shop.add(env, "nvidia_nccl_cu12", "2.27.5", files={"nvidia/nccl/lib/libnccl.so.2": shop.library("libnccl.so.2")})
    host = type(HOST)(machine=MACHINE, glibc="2.36", vendor="nvidia", driver="550.54.15")
    return Target(env, host=host)
