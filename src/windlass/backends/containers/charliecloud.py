"""Charliecloud: `ch-run [options] IMAGE -- command`, unprivileged. The image is a directory or a squashfs file.

The container gets the host's environment unchanged except TMPDIR. The image's environment is not applied. /tmp in the
container is the host's /tmp. ch-run creates nothing in a read-only image, so every mount point must already exist.
"""

from __future__ import annotations

from typing import ClassVar

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting


class Charliecloud(Runtime):
    name: ClassVar[str] = "charliecloud"
    executable: ClassVar[str] = "ch-run"
    image_forms: ClassVar[str] = "a folder with an unpacked image, a squashfs file, or a name in ch-image's storage"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"directory", "squashfs", "registry"})
    needs_user: ClassVar[bool] = True

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        plan = spec.container
        folder = (Argument(words=("--cd", spec.cwd), because="start in the working folder"),) if spec.cwd else ()
        return (
            Argument(words=(plan.executable,), because="the command runs in a container of charliecloud"),
            *plan.arguments,
            *(_bind(mount) for mount in visible_mounts(binds.mounts_of(spec, self))),
            *folder,
            Argument(words=(plan.image, "--"), because="the image"),
            *inside.inner_arguments(plan, inside.carry(plan.settings), inside.unset_names(plan.settings)),
        )

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        shared = Setting(
            name="TMPDIR",
            value=None,
            because="ch-run mounts the host's TMPDIR as /tmp; without the variable both use the same /tmp",
            keep_user=False,
        )
        return (shared, *inside.host_side(inside.carry(spec.container.settings)))

    def check_image(self, image: str) -> str | None:
        if image.startswith("-"):
            return "an image's name cannot start with -"
        if image_kind(image) not in self.image_kinds:
            return f"charliecloud takes {self.image_forms}; convert it with ch-convert"
        return None

    def check_mount(self, mount: Mount) -> str | None:
        if mount.read_only and mount.origin.scope == "flag":
            return "ch-run cannot bind read-only"
        return binds.forbidden(mount, ":", "ends the source in ch-run's --bind")


def visible_mounts(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """The mounts that are needed. Paths in /tmp are already visible, and ch-run refuses to mount into /tmp."""
    return tuple(m for m in mounts if not (m.source == m.target and (m.target + "/").startswith("/tmp/")))


def _bind(mount: Mount) -> Argument:
    return binds.bind_argument(mount, ("--bind", f"{mount.source}:{mount.target}"))
