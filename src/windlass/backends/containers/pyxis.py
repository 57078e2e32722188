"""Pyxis with enroot: Slurm starts the task in the image that `srun --container-image` names.

As with an EDF file, the whole rank script runs in the container and sets its variables there. The plan's variables for
the container are passed under another name, because the image's values replace those of the host.
"""

from __future__ import annotations

from typing import ClassVar

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.backends.containers.edf import registry_image
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting


class Pyxis(Runtime):
    name: ClassVar[str] = "pyxis"
    executable: ClassVar[str] = ""
    starts_task: ClassVar[bool] = True
    image_forms: ClassVar[str] = "a name such as nvcr.io#nvidia/pytorch:25.06-py3, or a .sqsh file"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"registry", "squashfs"})

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        return inside.inner_arguments(spec.container, inside.carry(spec.container.settings))

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        return inside.host_side(inside.carry(spec.container.settings))

    def launcher_arguments(self, spec: WrapSpec) -> tuple[Argument, ...]:
        plan = spec.container
        mounts = [_mount(mount) for mount in binds.mounts_of(spec, self) if not mount.optional]
        entry = "--container-entrypoint" if plan.verb == "run" else "--no-container-entrypoint"
        made = [
            (f"--container-image={registry_image(plan.image)}", "Pyxis starts each task inside the image"),
            (f"--container-mounts={','.join(mounts)}" if mounts else "", "the folders that the ranks need"),
            (f"--container-workdir={spec.cwd}" if spec.cwd else "", "start in the working folder"),
            (entry, "whether the entry point of the image starts the ranks"),
        ]
        return (*(Argument(words=(word,), because=because) for word, because in made if word), *plan.arguments)

    def check_image(self, image: str) -> str | None:
        return None if image_kind(image) in self.image_kinds else f"Pyxis takes {self.image_forms}"

    def check_mount(self, mount: Mount) -> str | None:
        return binds.forbidden(mount, ":,$\n", "cannot be written in --container-mounts")


def _mount(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
