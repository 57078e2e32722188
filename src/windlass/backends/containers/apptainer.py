"""Apptainer and Singularity: `apptainer exec [options] IMAGE command`.

The container gets the host's variables except PATH, HOME and LD_LIBRARY_PATH. A value that the image sets replaces the
host's value. A variable with the prefix `APPTAINERENV_` replaces the image's value. A shell evaluates such a value
before the command starts. Therefore a value with `$` or a backquote is passed differently (see `inside`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting

_EVALUATED = frozenset("$`\\")
_NO_WAY_IN = frozenset({"HOME"})
_OWN = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_")


class Apptainer(Runtime):
    """Apptainer, also under its old name `singularity` where a site links that name to it."""

    name: ClassVar[str] = "apptainer"
    executable: ClassVar[str] = "apptainer"
    prefix: ClassVar[str] = "APPTAINER"
    image_forms: ClassVar[str] = "a .sif file, a folder with an unpacked image, or a URI such as docker://NAME"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"sif", "squashfs", "directory", "uri"})
    carries_bytes: ClassVar[bool] = False
    mounts_home: ClassVar[bool] = True
    device_flags: ClassVar[dict[str, str]] = {"nvidia": "--nv", "amd": "--rocm"}

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        plan = spec.container
        start = Argument(words=(plan.executable, plan.verb), because=f"the command runs in a container of {self.name}")
        image = Argument(words=(plan.image,), because="the image")
        return (
            start,
            *self._devices(spec),
            *plan.arguments,
            *(_bind(mount) for mount in binds.mounts_of(spec, self)),
            *self._folder(spec),
            image,
            *inside.inner_arguments(plan, self._carried(spec), _unset(spec)),
        )

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        made = [self._injected(s) for s in spec.container.settings if self._can_inject(s)]
        because = "otherwise the image's value would override the host's"
        made += [
            inside.current(s, f"{self.prefix}ENV_{s.name}", f"{s.name} for the inside: {because}")
            for s in (*_arriving(spec), *inside.rank_settings(spec.rank_variables))
            if not s.joins and self._can_inject(s)
        ]
        made += [self._injected(s) for s in _arriving(spec) if s.joins and self._can_inject(s)]
        if spec.container.verb == "run":
            made.append(
                Setting(
                    name=f"{self.prefix}_NO_EVAL",
                    value="1",
                    because="without it, `run` passes the command's arguments through a shell again",
                    keep_user=False,
                )
            )
        return (*made, *inside.host_side(self._carried(spec)))

    def check_image(self, image: str) -> str | None:
        if image.startswith("-"):
            return "an image's name cannot start with -"
        if image_kind(image) not in self.image_kinds:
            return f"{self.name} takes {self.image_forms}; for a name in a registry write docker://{image}"
        return None

    def check_mount(self, mount: Mount) -> str | None:
        for path in (mount.source, mount.target):
            if path != path.strip():
                return "white space at the end of a path is cut off"
        return binds.forbidden(mount, ':,^"\\\n', "is a separator in a bind specification")

    def _devices(self, spec: WrapSpec) -> tuple[Argument, ...]:
        flag = self.device_flags.get(spec.vendor or "")
        if flag is None or not spec.container.device_flag or any(a.name == flag for a in spec.container.arguments):
            return ()
        return (Argument(words=(flag,), because=f"{spec.vendor} devices and driver libraries of the host"),)

    def _folder(self, spec: WrapSpec) -> tuple[Argument, ...]:
        if not spec.cwd or any(a.name in {"--pwd", "--cwd"} for a in spec.container.arguments):
            return ()
        # Every version has --pwd. Without it, a missing directory silently becomes the home directory.
        return (Argument(words=("--pwd", spec.cwd), because="start in the working folder"),)

    def _can_inject(self, setting: Setting) -> bool:
        """Whether the prefixed variable can pass this value. PATH has a separate form that prepends."""
        if setting.value is None or setting.secret or setting.name in _NO_WAY_IN:
            return False
        if setting.joins and setting.name != "PATH":
            return False
        return setting.expand or not _EVALUATED & set(setting.value)

    def _injected(self, setting: Setting) -> Setting:
        name = setting.name
        if name == "PATH" and setting.joins:
            name = "PREPEND_PATH" if setting.prepend else "APPEND_PATH"
        return msgspec.structs.replace(setting, name=f"{self.prefix}ENV_{name}", keep_user=False)

    def _carried(self, spec: WrapSpec) -> tuple[inside.Carried, ...]:
        own = (s for s in spec.container.settings if not self._can_inject(s))
        front = (s for s in _arriving(spec) if s.joins and not self._can_inject(s))
        rest = (s for s in _arriving(spec) if not s.joins and not self._can_inject(s))
        return (*inside.carry((*own, *front)), *inside.carry_current(rest, "a shell must not evaluate its value"))


class Singularity(Apptainer):
    """SingularityCE and the older Singularity."""

    name: ClassVar[str] = "singularity"
    executable: ClassVar[str] = "singularity"
    prefix: ClassVar[str] = "SINGULARITY"


def _arriving(spec: WrapSpec) -> tuple[Setting, ...]:
    """Settings for the command. The runtime's settings (`APPTAINER_CONTAINLIBS`) apply to the host only."""
    return tuple(s for s in spec.settings if s.inside and s.value is not None and not s.name.startswith(_OWN))


def _unset(spec: WrapSpec) -> tuple[str, ...]:
    return inside.unset_names((*spec.container.settings, *(s for s in spec.settings if s.inside)))


def _bind(mount: Mount) -> Argument:
    text = mount.source if mount.source == mount.target and not mount.read_only else f"{mount.source}:{mount.target}"
    return binds.bind_argument(mount, ("--bind", text + (":ro" if mount.read_only else "")))
