"""What an image's name says about it, by its text alone: planning may happen where the image is not."""

from __future__ import annotations

import re

from windlass.backends.containers.base import ImageKind

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
