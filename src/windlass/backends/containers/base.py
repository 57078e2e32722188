"""What a container runtime is to the rest of windlass: it puts words in front of the user's command. Pure.

The rank script runs on the host (except under an engine that starts the task inside, `starts_task`), so ranks, devices,
caches and rendezvous are computed outside and carried in by the means that the runtime has.

What an image's name says about it, by its text alone: planning may happen where the image is not.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import msgspec

from windlass.model.origin import Argument
from windlass.model.plan import ContainerPlan, Mount, Setting

ImageKind = Literal["sif", "squashfs", "directory", "uri", "registry", "edf"]
"""What an image's name says about it; see `image.image_kind`."""


class WrapSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime must do for one rank."""

    container: ContainerPlan
    cwd: str
    run_dir: str
    vendor: str | None
    """nvidia, amd, intel or None: which device flag to give."""
    settings: tuple[Setting, ...]
    """Variables of the plan that the command must see inside."""
    rank_variables: tuple[str, ...]
    """Names that the rank script has exported (RANK, MASTER_ADDR, …) and the command must see inside."""


class OptionalArgument(Argument, frozen=True, kw_only=True, omit_defaults=True):
    """Words that are only there on nodes which have the path; `exists` may hold `${NAME}`."""

    exists: str


class Runtime(ABC):
    """Base of the backends."""

    name: ClassVar[str]
    executable: ClassVar[str]
    starts_task: ClassVar[bool] = False
    """The launcher starts the whole rank script inside the container (`srun --environment`)."""
    image_forms: ClassVar[str]
    """For error messages: what an image looks like for this runtime."""
    image_kinds: ClassVar[frozenset[ImageKind]]
    """Kinds of image it takes."""
    carries_bytes: ClassVar[bool] = True
    """Words and values that are not UTF-8 arrive unchanged. Runtimes that hand them on as JSON replace such bytes."""
    shares_file_systems: ClassVar[bool] = False
    """The site's configuration shows the shared file systems inside, and binding them again is refused."""
    shares_tmp: ClassVar[bool] = True
    """/tmp inside is the node's own, so caches that the rank script makes there are seen."""
    mounts_home: ClassVar[bool] = False
    """The home folder is visible inside unless asked otherwise, with the packages in `~/.local`."""
    needs_user: ClassVar[bool] = False
    """It refuses to start without the variable USER, which not every job has."""
    device_flags: ClassVar[dict[str, str]] = {}
    """The option that brings a vendor's devices and driver libraries inside."""

    @abstractmethod
    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        """The words in front of the user's command, executable first; empty where the launcher does it."""

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        """Variables to set on the host side so that others arrive inside (`APPTAINERENV_LD_LIBRARY_PATH`)."""
        return ()

    def launcher_arguments(self, spec: WrapSpec) -> tuple[Argument, ...]:
        """Words for the launcher's own command line."""
        return ()

    def files(self, spec: WrapSpec) -> dict[str, str]:
        """Files to write into the run folder, name to text (an EDF file)."""
        return {}

    def check_image(self, image: str) -> str | None:
        """What is wrong with this image's name for this runtime, or None. Looks at the text alone."""
        return None

    def check_mount(self, mount: Mount) -> str | None:
        """What the runtime's bind syntax cannot express about this mount, or None."""
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
    """`x.sif`, `x.sqfs`, `x.toml` by their endings, `docker://…` by its scheme; a path is a folder, and what is left is
    a name in a registry."""
    if _URI.match(image):
        return "uri"
    for ending, kind in _ENDINGS.items():
        if image.lower().endswith(ending):
            return kind
    return "directory" if is_path(image) else "registry"


def is_path(image: str) -> bool:
    """Whether the name is a path on this file system and not a name in a registry."""
    return image.startswith(("/", "./", "../", "~", "$")) or image.endswith("/") or image in {".", ".."}


def looked_up(image: str) -> bool:
    """Whether the image is a file or folder that can be looked for."""
    return image_kind(image) in {"sif", "squashfs", "directory", "edf"}
