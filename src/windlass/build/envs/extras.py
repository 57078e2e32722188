"""Packages of `--with`: those that need more than `pip install NAME`, and a check of the names of all others. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.errors import UsageError

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9,._-]+\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]+)?\Z"
)


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """A package to install, and how."""

    name: str
    requirement: str
    because: str
    module: str = ""
    """What to import to see that it works."""
    environment: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """What has to be there before it can be built."""
    mpi: bool = False
    """Compiled with the MPI's wrapper."""
    torch_index: bool = False
    """Its wheels lie beside torch's."""


_KNOWN = {
    "mpi4py": Extra(
        name="mpi4py",
        requirement="mpi4py",
        because="",
        module="mpi4py",
        options=("--no-cache-dir", "--no-binary=mpi4py"),
        mpi=True,
    ),
    "deepspeed": Extra(
        name="deepspeed",
        requirement="deepspeed",
        because="its kernels are compiled in the job, where the devices are, and not now",
        environment=("DS_BUILD_OPS=0",),
    ),
    "torchvision": Extra(
        name="torchvision",
        requirement="torchvision",
        because="from torch's own index: PyPI's is for another build of torch",
        module="torchvision",
        torch_index=True,
    ),
    "torchaudio": Extra(
        name="torchaudio",
        requirement="torchaudio",
        because="from torch's own index: PyPI's is for another build of torch",
        module="torchaudio",
        torch_index=True,
    ),
    "flash-attn": Extra(
        name="flash-attn",
        requirement="flash-attn",
        because="compiled against the torch that is here: it takes long and needs the vendor's compiler",
        options=("--no-build-isolation",),
        tools=("setuptools", "wheel", "packaging", "ninja"),
    ),
}
KNOWN_EXTRAS = tuple(_KNOWN)


def find_extra(text: str) -> Extra:
    """The package of this name, perhaps with a version. `UsageError` for what pip could not be given."""
    found = _REQUIREMENT.match(text)
    if found is None:
        raise UsageError(
            f"--with {text!r} is no name of a package", hint=f"as in {','.join(KNOWN_EXTRAS[:2])},einops==0.8.0"
        )
    name = found["name"].lower().replace("_", "-")
    if name in ("torch", "pytorch"):
        raise UsageError(
            "torch is not one of the extras", hint="--torch VERSION, as in --torch 2.10.0+cu128; none leaves it out"
        )
    known = _KNOWN.get(name)
    if known is not None:
        return msgspec.structs.replace(known, requirement=text)
    return Extra(name=text, requirement=text, because="as pip finds it, for the torch that is here")
