"""The plugin for a bare host: a script that builds it into a prefix with the site's modules, compilers and libfabric.

As the sites' documents do it by hand; text only, nothing is run here.
"""

from __future__ import annotations

import re

from windlass.plan.environment.modules import module_lines
from windlass.errors import UsageError
from windlass.node.libs.closure import version_key
from windlass.build.images.recipe import Recipe
from windlass.build.images.render import comment_lines
from windlass.build.images.spec import Versions
from windlass.build.images.steps import checkout, source_of
from windlass.model.condition import Facts, holds
from windlass.model.site import Site

HOST_KEYS = ("rocm", "libfabric-path", "modules")
"""What `--set` may say about a host beside versions of components."""
_PLUGIN_MODULES = re.compile(r"rccl-net-plugin|aws-ofi|nccl")


def host_script_text(recipe: Recipe, site: Site, versions: Versions, chosen: dict[str, str]) -> str:
    """The script. `chosen` may name `rocm`, `libfabric-path` and `modules` (a list with blanks). Raises `UsageError`
    where the site has no GPU library that the plugin is for."""
    if recipe.gpu not in {"amd", "nvidia"}:
        raise UsageError(
            f"{recipe.name} has no GPU library to make a plugin for", hint="take pytorch-ngc or pytorch-rocm"
        )
    modules = _modules(site, chosen)
    vendor = _rocm(recipe, versions, chosen, modules) if recipe.gpu == "amd" else _cuda(recipe, versions, chosen)
    folders = site.file.host_libraries.folders
    libfabric = chosen.get("libfabric-path") or (folders[0].rpartition("/")[0] if folders else "/usr")
    lines = ["#!/bin/bash"]
    lines += comment_lines(
        f"The plugin of {'RCCL' if recipe.gpu == 'amd' else 'NCCL'} for libfabric, for a host of {site.name}, made "
        f"by windlass from the spec {recipe.name} and the site's facts."
    )
    lines += comment_lines("Not run here. Run it on a login node, in a folder that the compute nodes see.")
    lines += [
        "set -e  # -u below: modules read unset variables",
        "",
        "PREFIX=${PREFIX:-$PWD/aws-ofi-plugin}",
        "SRC=${SRC:-$PWD/src}",
        "",
    ]
    lines += [
        "# The site's compilers and MPI, as its own document loads them.",
        *module_lines((), modules),
        "set -u",
        "",
    ]
    lines += _libfabric(libfabric)
    lines += vendor
    lines += [
        "",
        'ls "$PREFIX"/lib/lib*ccl-net*.so',
        "# NCCL and RCCL find the plugin by the search path alone.",
        'echo "add to the job, or give windlass run --env-prepend LD_LIBRARY_PATH=$PREFIX/lib:"',
        "# shellcheck disable=SC2016",
        "echo 'export LD_LIBRARY_PATH='\"$PREFIX\"'/lib:$LD_LIBRARY_PATH'",
    ]
    return "\n".join(lines) + "\n"


def _modules(site: Site, chosen: dict[str, str]) -> tuple[str, ...]:
    if "modules" in chosen:
        return tuple(chosen["modules"].split())
    facts = Facts(nodes=1, ranks_per_node=1, scheduler=site.file.scheduler.kind, launcher="local")
    names = [n for spec in site.file.modules if spec.default and holds(spec.when, facts) for n in spec.load]
    kept = [name for name in names if not _PLUGIN_MODULES.search(name)]
    wanted = chosen.get("rocm")
    return tuple(f"rocm/{wanted}" if wanted and name.startswith("rocm/") else name for name in kept)


def _libfabric(path: str) -> list[str]:
    if "*" not in path:
        return [f"LIBFABRIC=${{LIBFABRIC:-{path}}}"]
    return [
        "# The newest libfabric of the host, unless LIBFABRIC says another.",
        f"LIBFABRIC=${{LIBFABRIC:-$(printf '%s\\n' {path} | sort -V | tail -n 1)}}",
        '[ -e "$LIBFABRIC" ] || { echo "no libfabric in $LIBFABRIC" >&2; exit 1; }',
    ]


def _rocm(recipe: Recipe, versions: Versions, chosen: dict[str, str], modules: tuple[str, ...]) -> list[str]:
    loaded = next((name.partition("/")[2] for name in modules if name.startswith("rocm/")), "")
    version = chosen.get("rocm") or loaded
    home = f"/opt/rocm-{version}" if version else "${ROCM_PATH:?load a rocm module}"
    if version and version_key(version) < (6,):
        return _rccl_plugin(versions, home)
    component = versions.components["aws-ofi-nccl"]
    source = source_of("aws-ofi-nccl", component, next(s.version for s in recipe.contents if s.name == "aws-ofi-nccl"))
    return [
        f"GPU_HOME={home}",
        "",
        "# From 6.0 on RCCL lies in ROCm's own lib and include; aws-ofi-nccl has ROCm since 1.18.0.",
        *checkout(source),
        'cd "$SRC/aws-ofi-nccl"',
        "./autogen.sh",
        './configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC" --with-rocm="$GPU_HOME" --disable-tests',
        "make -j 8",
        "make install",
    ]


def _rccl_plugin(versions: Versions, home: str) -> list[str]:
    """Before ROCm 6 RCCL had a folder of its own, and the plugin was another repository."""
    component = versions.components["aws-ofi-rccl"]
    return [
        f"GPU_HOME={home}",
        "",
        "# Before 6.0 RCCL lies in its own folder, GPU_HOME/rccl, and the plugin is aws-ofi-rccl.",
        *checkout(source_of("aws-ofi-rccl", component, component.version)),
        'cd "$SRC/aws-ofi-rccl"',
        "./autogen.sh",
        'export LD_LIBRARY_PATH="$GPU_HOME/hip/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
        'CC=hipcc CFLAGS="-I$GPU_HOME/rccl/include" ./configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC" \\',
        '  --with-rccl="$GPU_HOME" --with-hip="$GPU_HOME/hip" --with-mpi="${MPICH_DIR:?load cray-mpich}" \\',
        "  --enable-trace",
        "make -j 8",
        "make install",
    ]


def _cuda(recipe: Recipe, versions: Versions, chosen: dict[str, str]) -> list[str]:
    component = versions.components["aws-ofi-nccl"]
    version = next((s.version for s in recipe.contents if s.name == "aws-ofi-nccl"), component.version)
    return [
        "GPU_HOME=${CUDA_HOME:?load a CUDA module}",
        "",
        *checkout(source_of("aws-ofi-nccl", component, version)),
        'cd "$SRC/aws-ofi-nccl"',
        "./autogen.sh",
        './configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC" --with-cuda="$GPU_HOME" --disable-tests',
        "make -j 8",
        "make install",
    ]
