"""The build steps of images, as commands for `sh` with a reason for each step. Pure.

Commands use `$PREFIX` (installation prefix), `$SRC` (build folder), `$GPU_HOME` and `$LIBFABRIC`. The code that renders
the steps sets these variables. Each command is one line, and it must succeed before the next one runs.
"""

from __future__ import annotations

import msgspec

from windlass.build.images.spec import Component, ImageSpec
from windlass.errors import UsageError

_BUILD_PACKAGES = (
    "autoconf",
    "automake",
    "ca-certificates",
    "curl",
    "g++",
    "gcc",
    "git",
    "libtool",
    "make",
    "pkg-config",
)
_CXI_PACKAGES = (
    *("libconfig-dev", "libcurl4-openssl-dev", "libfuse-dev", "libjson-c-dev", "libnl-3-dev", "libnl-genl-3-dev"),
    *("libnuma-dev", "libsensors-dev", "libuv1-dev", "libyaml-dev", "python3"),
)
_CXI_RUNTIME = ("libconfig9", "libcurl4", "libjson-c5", "libnl-3-200", "libnl-genl-3-200", "libnuma1", "libyaml-0-2")

_FABRIC_PACKAGES = {"": (), "slingshot": _CXI_PACKAGES, "infiniband": ("libibverbs-dev", "librdmacm-dev", "libucx-dev")}
_FABRIC_RUNTIME = {
    "": (),
    "slingshot": _CXI_RUNTIME,
    "infiniband": ("ibverbs-providers", "libibverbs1", "librdmacm1", "libucx0"),
}

_GDRCOPY = "if [ -e /usr/include/gdrapi.h ]; then gdrcopy=--enable-gdrcopy-dlopen; else gdrcopy=; fi"
"""Only if the base has its header: configure fails otherwise."""

_STUBS = (
    'if [ -e "$GPU_HOME/lib64/stubs/libcuda.so" ]; then stubs=$GPU_HOME/lib64/stubs; '
    'else stubs=; echo "no stub of the driver in $GPU_HOME: MPI is built without CUDA" >&2; fi'
)
"""Given explicitly, because configure otherwise uses every libcuda.so that it finds, including those of the folder
compat."""


_CUDART = 'if [ -e "$GPU_HOME/lib64/libcudart_static.a" ]; then cudart=; else cudart=--enable-cudart-dynamic; fi'
"""NCCL's plugin uses the static runtime by default, which smaller toolkits do not contain."""

BUNDLED = "bundled"
"""A version of PMIx: the copy in Open MPI's archive."""


class BuildStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step and its reason."""

    name: str
    because: str
    commands: tuple[str, ...]


class DownloadedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A component of the image, for its list of contents."""

    name: str
    version: str
    url: str
    commit: str = ""
    sha256: str = ""


def source_of(name: str, component: Component, version: str) -> DownloadedSource:
    """Return a component in the chosen version. Raises `UsageError` for a version that is not pinned."""
    if component.commits and version not in component.commits:
        hint = f"known: {', '.join(sorted(component.commits))}"
        raise UsageError(f"{name} {version}: no commit is known for it", hint=hint)
    if name == "pmix" and version == BUNDLED:
        return DownloadedSource(name=name, version=version, url="in the archive of openmpi")
    if version in component.archives:
        archive = component.archives[version]
        return DownloadedSource(name=name, version=version, url=archive.url, sha256=archive.sha256)
    series = ".".join(version.split(".")[:2])
    url = component.url.format(version=version, series=series) if "{version}" in component.url else component.url
    return DownloadedSource(name=name, version=version, url=url, commit=component.commits.get(version, ""))


def checkout(source: DownloadedSource) -> tuple[str, ...]:
    """Return commands that fetch exactly these sources to `$SRC/NAME`."""
    place = f'"$SRC/{source.name}"'
    if source.commit:
        return (
            f"git init -q {place}",
            f"git -C {place} fetch -q --depth 1 {source.url} {source.commit}",
            f"git -C {place} checkout -q {source.commit}",
        )
    archive = f'"$SRC/{source.name}.tar"'
    verify = (f'echo "{source.sha256}  $SRC/{source.name}.tar" | sha256sum -c -',) if source.sha256 else ()
    return (
        f"mkdir -p {place}",
        f"curl -fsSL -o {archive} {source.url}",
        *verify,
        f"tar -xf {archive} -C {place} --strip-components=1",
    )


def build_packages(spec: ImageSpec, extras: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Debian packages that the build needs."""
    names = {*_BUILD_PACKAGES, *_FABRIC_PACKAGES[spec.fabric]}
    if "ofi" in extras or "mpi" in extras:
        names.add("libhwloc-dev")
    if "mpi" in extras:
        names |= {"libevent-dev", "python3", "xz-utils"}
    return tuple(sorted(names))


def runtime_packages(spec: ImageSpec, extras: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Debian packages that the image needs to run the built programs."""
    names = {*spec.packages, *_FABRIC_RUNTIME[spec.fabric]}
    if "ofi" in extras or "mpi" in extras:
        names.add("libhwloc15")
    if "mpi" in extras:
        names |= {"libevent-2.1-7", "libevent-pthreads-2.1-7"}
    if {"deepspeed", "horovod"} & set(extras):
        names |= {"g++", "cmake"} if "horovod" in extras else {"g++"}
    return tuple(sorted(names))


def packages_step(name: str, packages: tuple[str, ...], because: str) -> BuildStep:
    return BuildStep(
        name=name,
        because=because,
        commands=(
            "apt-get update",
            f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(packages)}",
            "rm -rf /var/lib/apt/lists/*",
        ),
    )


def cxi_step(headers: DownloadedSource, driver: DownloadedSource, library: DownloadedSource) -> BuildStep:
    return BuildStep(
        name="libcxi",
        because="the library of the Slingshot NIC; built here, so that the image does not depend on the host's version",
        commands=(
            *checkout(headers),
            *checkout(driver),
            *checkout(library),
            'mkdir -p "$PREFIX/include" "$PREFIX/share"',
            'cp -r "$SRC/cassini-headers/include/." "$PREFIX/include/"',
            'cp -r "$SRC/cassini-headers/share/." "$PREFIX/share/"',
            # One of libcxi's scripts searches for a table there, or in /usr/share.
            'mkdir -p "$SRC/cassini-headers/install"',
            'cp -r "$SRC/cassini-headers/share" "$SRC/cassini-headers/install/"',
            'cp -r "$SRC/cxi-driver/include/." "$PREFIX/include/"',
            'cd "$SRC/libcxi"',
            "./autogen.sh",
            'export CFLAGS="-I$PREFIX/include"',
            './configure --prefix="$PREFIX" --with-udevrulesdir=no --with-systemdsystemunitdir=no',
            'make -j "$(nproc)"',
            "make install",
        ),
    )


def libfabric_step(source: DownloadedSource, spec: ImageSpec) -> BuildStep:
    cxi = ' --enable-cxi="$PREFIX" --with-cassini-headers="$PREFIX" --with-cxi-uapi-headers="$PREFIX"'
    gpu = {
        "nvidia": ' --with-cuda="$GPU_HOME" --enable-cuda-dlopen ${gdrcopy:+"$gdrcopy"}',
        "amd": ' --with-rocr="$GPU_HOME"',
        "": "",
    }[spec.gpu]
    only = {"slingshot": cxi + " --disable-verbs --disable-efa --enable-lnx", "infiniband": " --enable-verbs", "": ""}[
        spec.fabric
    ]
    return BuildStep(
        name="libfabric",
        because="MPI and NCCL's plugin reach the fabric through it"
        + (", by the provider cxi" if spec.fabric == "slingshot" else ": verbs on InfiniBand, tcp on Ethernet"),
        commands=(
            *checkout(source),
            *((_GDRCOPY,) if spec.gpu == "nvidia" else ()),
            'cd "$SRC/libfabric"',
            "./autogen.sh",
            f'./configure --prefix="$PREFIX" --enable-shm{gpu}{only}',
            'make -j "$(nproc)"',
            "make install",
        ),
    )


def mpi_steps(pmix: DownloadedSource, openmpi: DownloadedSource, spec: ImageSpec) -> tuple[BuildStep, ...]:
    """Build PMIx and Open MPI.

    With `pmix=bundled`, use the copy of PMIx in Open MPI's archive, which needs no source.
    """
    gpu = {
        "nvidia": ' --with-cuda="$GPU_HOME" ${stubs:+"--with-cuda-libdir=$stubs"}',
        "amd": ' --with-rocm="$GPU_HOME"',
        "": "",
    }[spec.gpu]
    bundled = pmix.version == BUNDLED
    own = "internal" if bundled else '"$PREFIX"'
    first = (
        BuildStep(
            name="pmix",
            because="how MPI in the image finds the ranks that Slurm has started; without munge, which is the host's",
            commands=(
                *checkout(pmix),
                'cd "$SRC/pmix"',
                './configure --prefix="$PREFIX" --disable-munge',
                'make -j "$(nproc)"',
                "make install",
            ),
        ),
    )
    ucx = spec.fabric == "infiniband"
    with_ucx = "--with-ucx" if ucx else "--without-ucx"
    because = "MPI over libfabric, without UCX, which MPI would prefer and which does not support the fabric"
    last = BuildStep(
        name="openmpi",
        because="MPI over UCX, the library of InfiniBand, and over libfabric" if ucx else because,
        commands=(
            *checkout(openmpi),
            *((_STUBS,) if spec.gpu == "nvidia" else ()),
            'cd "$SRC/openmpi"',
            f'./configure --prefix="$PREFIX" --with-libfabric="$PREFIX" --with-pmix={own} {with_ucx}{gpu}',
            'make -j "$(nproc)"',
            "make install",
        ),
    )
    return (last,) if bundled else (*first, last)


def ofi_step(source: DownloadedSource, spec: ImageSpec) -> BuildStep:
    """Build NCCL's or RCCL's plugin.

    `$LIBFABRIC` must not be /usr: the compiler would then find no standard headers.
    """
    gpu = ' --with-rocm="$GPU_HOME"'
    if spec.gpu == "nvidia":
        gpu = ' --with-cuda="$GPU_HOME" ${cudart:+"$cudart"}'
    return BuildStep(
        name=source.name,
        because="the collective library's plugin for libfabric; without it, NCCL and RCCL use TCP without a message",
        commands=(
            *checkout(source),
            *((_CUDART,) if spec.gpu == "nvidia" else ()),
            f'cd "$SRC/{source.name}"',
            "./autogen.sh",
            f'./configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC"{gpu} --disable-tests',
            'make -j "$(nproc)"',
            "make install",
        ),
    )


def collective_tests_step(source: DownloadedSource, spec: ImageSpec) -> BuildStep:
    home = 'CUDA_HOME="$GPU_HOME"' if spec.gpu == "nvidia" else 'HIP_HOME="$GPU_HOME" NCCL_HOME="$GPU_HOME"'
    return BuildStep(
        name=source.name,
        because="measures whether the network is used at all: all_reduce_perf over two nodes",
        commands=(
            *checkout(source),
            f'make -C "$SRC/{source.name}" -j "$(nproc)" MPI=1 MPI_HOME="$PREFIX" {home}',
            'mkdir -p "$PREFIX/bin"',
            f'cp "$SRC/{source.name}"/build/*_perf "$PREFIX/bin/"',
        ),
    )


def deepspeed_step(source: DownloadedSource) -> BuildStep:
    return BuildStep(
        name="deepspeed",
        because="only this version; torch stays that of the image",
        commands=(f"python3 -m pip install --no-cache-dir --no-build-isolation deepspeed=={source.version}",),
    )


def horovod_step(source: DownloadedSource, spec: ImageSpec) -> BuildStep:
    gpu = {
        "nvidia": 'HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME="$GPU_HOME"',
        "amd": 'HOROVOD_GPU=ROCM HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_ROCM_HOME="$GPU_HOME"',
        "": "",
    }[spec.gpu]
    which = "HOROVOD_WITH_TENSORFLOW=1" if spec.framework == "tensorflow" else "HOROVOD_WITH_PYTORCH=1"
    install = f"python3 -m pip install --no-cache-dir --no-build-isolation horovod=={source.version}"
    return BuildStep(
        name="horovod",
        because="built against the MPI of this image",
        commands=(" ".join(part for part in ("HOROVOD_WITH_MPI=1", which, gpu, install) if part),),
    )
