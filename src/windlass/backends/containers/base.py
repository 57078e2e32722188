"""The interface of a container runtime: it adds arguments in front of the user's command. Pure.

The rank script runs on the host, except under an engine that starts the task in the container (`starts_task`). So the
rank script computes ranks, devices, caches and the rendezvous outside the container. The runtime then passes them in.

`image_kind` classifies an image by its name only, because the planning host may not have the image.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import msgspec

from windlass.model.origin import Argument
from windlass.model.plan import ContainerPlan, Mount, Setting

ImageKind = Literal["sif", "squashfs", "directory", "uri", "registry", "edf"]
"""The kind of an image according to its name. See `image_kind`."""


class WrapSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The request for one rank that a runtime turns into arguments, variables and files."""

    container: ContainerPlan
    cwd: str
    run_dir: str
    vendor: str | None
    """nvidia, amd, intel or None. Selects the device flag."""
    settings: tuple[Setting, ...]
    """Variables of the plan that the command must see in the container."""
    rank_variables: tuple[str, ...]
    """Variables that the rank script exports (RANK, MASTER_ADDR, …) and that the command must see in the container."""


class OptionalArgument(Argument, frozen=True, kw_only=True, omit_defaults=True):
    """Arguments that are added only on nodes where the path exists. `exists` may contain `${NAME}`."""

    exists: str


class Runtime(ABC):
    """Base of the backends."""

    name: ClassVar[str]
    executable: ClassVar[str]
    starts_task: ClassVar[bool] = False
    """The launcher starts the whole rank script inside the container (`srun --environment`)."""
    image_forms: ClassVar[str]
    """The forms of an image name that this runtime accepts, for error messages."""
    image_kinds: ClassVar[frozenset[ImageKind]]
    """Kinds of image that it accepts."""
    carries_bytes: ClassVar[bool] = True
    """Arguments and values that are not UTF-8 arrive unchanged. Runtimes that pass them as JSON replace such bytes."""
    shares_file_systems: ClassVar[bool] = False
    """The site's configuration mounts the shared file systems. The runtime refuses to bind them again."""
    shares_tmp: ClassVar[bool] = True
    """/tmp in the container is the node's /tmp, so the command sees the caches that the rank script creates there."""
    mounts_home: ClassVar[bool] = False
    """The home directory, with the packages in `~/.local`, is visible in the container unless disabled."""
    needs_user: ClassVar[bool] = False
    """It refuses to start without the variable USER, which some jobs do not have."""
    device_flags: ClassVar[dict[str, str]] = {}
    """The option that adds a vendor's devices and driver libraries to the container."""

    @abstractmethod
    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        """The arguments in front of the user's command, executable first. Empty if the launcher does it."""

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        """Variables to set on the host so that others arrive in the container (`APPTAINERENV_LD_LIBRARY_PATH`)."""
        return ()

    def launcher_arguments(self, spec: WrapSpec) -> tuple[Argument, ...]:
        """Arguments for the launcher's command line."""
        return ()

    def files(self, spec: WrapSpec) -> dict[str, str]:
        """Files to write into the run folder (an EDF file). Maps each name to its text."""
        return {}

    def check_image(self, image: str) -> str | None:
        """The reason why this runtime cannot use this image name, or None. Checks only the text."""
        return None

    def check_mount(self, mount: Mount) -> str | None:
        """The part of this mount that the runtime's bind syntax cannot express, or None."""
        return None


_URI = re.compile(
    r"(docker|docker-daemon|library|oras|shub|https?)://|(oci|oci-archive|docker-archive):", re.IGNORECASE
)
_ENDINGS: dict[str, ImageKind] = {
    ".sif": "sif",
    ".simg": "sif",
    ".sqsh": "squashfs",
    ".sqfs": "squashfs",
    ".squashfs": "squashfs",
    ".squash": "squashfs",
    ".toml": "edf",
}


def image_kind(image: str) -> ImageKind:
    """Classify an image by its name.

    The suffix decides for `x.sif`, `x.sqfs` and `x.toml`, and the scheme for `docker://…`. A path is a directory. Any
    other name is a name in a registry."""
    if _URI.match(image):
        return "uri"
    for ending, kind in _ENDINGS.items():
        if image.lower().endswith(ending):
            return kind
    return "directory" if is_path(image) else "registry"


def is_path(image: str) -> bool:
    """Whether the name is a path on this file system rather than a name in a registry."""
    return image.startswith(("/", "./", "../", "~", "$")) or image.endswith("/") or image in {".", ".."}


def looked_up(image: str) -> bool:
    """Whether the image is a file or directory whose existence can be checked."""
    return image_kind(image) in {"sif", "squashfs", "directory", "edf"}
