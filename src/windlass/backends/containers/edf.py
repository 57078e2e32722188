"""The CSCS container engine: Slurm starts the task in a container that an environment definition file describes.

`srun --environment=<run folder>/windlass.edf.toml`. The whole rank script runs in the container, so its variables need
no special passing. The file contains the image, the mounts, the working directory, the variables that must exist before
any program starts, and the annotations that enable the engine's hooks.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.errors import ConfigError
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting

FILE_NAME = "windlass.edf.toml"
_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")


class ContainerEngine(Runtime):
    name: ClassVar[str] = "edf"
    executable: ClassVar[str] = ""
    starts_task: ClassVar[bool] = True
    image_forms: ClassVar[str] = "a name such as nvcr.io#nvidia/pytorch:25.06-py3, a .sqsh file, or an .toml file (EDF)"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"registry", "squashfs", "edf"})

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        return inside.inner_arguments(spec.container, _in_front(spec))

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        return inside.host_side(_in_front(spec))

    def launcher_arguments(self, spec: WrapSpec) -> tuple[Argument, ...]:
        words = (f"--environment={spec.run_dir}/{FILE_NAME}",)
        return (Argument(words=words, because="the container engine starts each task inside the image"),)

    def files(self, spec: WrapSpec) -> dict[str, str]:
        return {FILE_NAME: edf_text(spec, binds.mounts_of(spec, self))}

    def check_image(self, image: str) -> str | None:
        if image_kind(image) not in self.image_kinds:
            return f"the container engine takes {self.image_forms}"
        return None

    def check_mount(self, mount: Mount) -> str | None:
        return binds.forbidden(mount, ":, \t\n", "cannot be written in a mount of an EDF file")


def edf_text(spec: WrapSpec, mounts: tuple[Mount, ...]) -> str:
    """The text of the environment definition file, with a reason for each part."""
    plan = spec.container
    key = "base_environment" if image_kind(plan.image) == "edf" else "image"
    lines = [
        "# Written by windlass for one run; see plan.json in this folder.",
        f"{key} = {_string(registry_image(plan.image))}",
    ]
    if spec.cwd:
        lines.append(f"workdir = {_string(_literal(spec.cwd))}")
    if plan.verb == "run":
        lines.append("entrypoint = true")
    lines.append("mounts = [")
    for mount in mounts:
        text = f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
        lines.append(f"  {_string(text)},  # {_comment(mount.because)}")
    lines.append("]")
    table = [s for s in plan.settings if not s.joins]
    if table:
        lines += ["", "[env]"]
        lines += [f"{_key(s.name)} = {_string(_value(s))}  # {_comment(s.because)}" for s in table]
    if plan.annotations:
        lines += ["", "[annotations]"]
        lines += [f"{_key(name)} = {_string(text)}" for name, text in plan.annotations.items()]
    return "\n".join(lines) + "\n"


def registry_image(image: str) -> str:
    """Rewrite a common image name for the engine, which separates the registry from the name with `#`."""
    if image_kind(image) != "registry" or "#" in image:
        return image
    registry, slash, name = image.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return f"{registry}#{name}"
    return image


def _in_front(spec: WrapSpec) -> tuple[inside.Carried, ...]:
    """Variables that a shell in the container prepends to the image's value. The file can only replace a value."""
    return inside.carry(tuple(s for s in spec.container.settings if s.joins))


def _value(setting: Setting) -> str:
    if setting.value is None:
        return ""  # the engine unsets a variable with an empty value
    return setting.value if setting.expand else _literal(setting.value)


def _literal(text: str) -> str:
    """Escape `${` as `$${`, because the engine expands `${NAME}` everywhere."""
    return text.replace("${", "$${")


def _string(text: str) -> str:
    """A TOML basic string. JSON's escapes are a subset of TOML's if only ASCII characters are escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _key(name: str) -> str:
    if not _KEY.match(name):
        raise ConfigError(f"{name!r} cannot be a key of an EDF file", hint="letters, digits, _, - and dots")
    return name
