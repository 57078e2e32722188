"""Shifter: `shifter --image=… --module=… [options] -- command`.

The container gets the host's variables except TMPDIR and those of the loader. The image's values replace the host's.
`--env` would replace both, but it refuses empty values and shows them in the process list. Therefore variables are
passed under another name (see `inside`). Shifter mounts the site's file systems by default.
"""

from __future__ import annotations

from typing import ClassVar

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting

_REFUSED = ("/etc", "/var", "/opt/udiImage")


class Shifter(Runtime):
    name: ClassVar[str] = "shifter"
    executable: ClassVar[str] = "shifter"
    image_forms: ClassVar[str] = "a name such as docker:library/debian:12 that `shifterimg images` lists"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"registry"})
    shares_file_systems: ClassVar[bool] = True
    mounts_home: ClassVar[bool] = True

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        plan = spec.container
        entry = Argument(words=("--entrypoint",), because="the image's entry point runs, and starts the command")
        return (
            Argument(words=(plan.executable,), because="the command runs in a container of shifter"),
            Argument(words=(f"--image={plan.image}",), because="the image"),
            *plan.arguments,
            *((entry,) if plan.verb == "run" else ()),
            *(_volume(mount) for mount in binds.mounts_of(spec, self)),
            *((Argument(words=(f"--workdir={spec.cwd}",), because="start in the working folder"),) if spec.cwd else ()),
            Argument(words=("--",), because="nothing after it is an option of shifter"),
            *inside.inner_arguments(plan, _carried(spec), _unset(spec)),
        )

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        return inside.host_side(_carried(spec))

    def check_image(self, image: str) -> str | None:
        if image_kind(image) not in self.image_kinds:
            return f"shifter takes {self.image_forms}"
        return None

    def check_mount(self, mount: Mount) -> str | None:
        wrong = binds.forbidden(mount, ":;", "separates volumes and their parts")
        if wrong or mount.target == "/var/tmp":
            return wrong
        for folder in _REFUSED:
            if (mount.target + "/").startswith(folder + "/"):
                return f"shifter does not allow mounts over {folder}"
        return "shifter does not allow mounts over /opt" if mount.target == "/opt" else None


def _carried(spec: WrapSpec) -> tuple[inside.Carried, ...]:
    arriving = tuple(s for s in spec.settings if s.inside and s.value is not None)
    present = (*(s for s in arriving if not s.joins), *inside.rank_settings(spec.rank_variables))
    own = (*spec.container.settings, *(s for s in arriving if s.joins))
    return (*inside.carry_current(present, "otherwise the image's value would override the host's"), *inside.carry(own))


def _unset(spec: WrapSpec) -> tuple[str, ...]:
    return inside.unset_names((*spec.container.settings, *(s for s in spec.settings if s.inside)))


def _volume(mount: Mount) -> Argument:
    text = f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    return binds.bind_argument(mount, (f"--volume={text}",))
