"""podman-hpc: `podman-hpc run [options] -- IMAGE command`.

The container gets no variables from the host by default. Variables are passed by name (`--env NAME`), so that a process
list never shows a value. The wrapper searches the whole command line for its options, and would remove a `--gpu` or a
`--` from the user's command. A `--` before the image prevents that.
"""

from __future__ import annotations

import re
from typing import ClassVar

from windlass.backends.containers import binds, inside
from windlass.backends.containers.base import ImageKind, Runtime, WrapSpec, image_kind
from windlass.model.origin import Argument
from windlass.model.plan import Mount, Setting

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FAMILIES = {
    "WINDLASS_*": "where windlass keeps this run and its caches",
    "SLURM_*": "the scheduler's variables of the job",
    "PALS_*": "the launcher's variables of the rank",
    "PMI*": "how MPI in the image finds the other ranks",
    "FLUX_*": "the scheduler's variables of the job",
}
"""Variables of the job, by the prefix of their names."""
_SHARED = (
    ("--network", "--net", "host", "the ranks use the host's network interfaces"),
    ("--ipc", "--ipc", "host", "the ranks of a node share memory through /dev/shm"),
)


class PodmanHpc(Runtime):
    name: ClassVar[str] = "podman-hpc"
    executable: ClassVar[str] = "podman-hpc"
    carries_bytes: ClassVar[bool] = False
    shares_tmp: ClassVar[bool] = False
    image_forms: ClassVar[str] = "a name such as docker.io/library/debian:12 that `podman-hpc images` lists"
    image_kinds: ClassVar[frozenset[ImageKind]] = frozenset({"registry"})
    device_flags: ClassVar[dict[str, str]] = {"nvidia": "--gpu"}

    def wrap(self, spec: WrapSpec) -> tuple[Argument, ...]:
        plan = spec.container
        start = Argument(
            words=(plan.executable, "run", "--rm"), because="the command runs in a container of podman-hpc"
        )
        return (
            start,
            *self._devices(spec),
            *plan.arguments,
            *_shared(plan.arguments),
            *_entrypoint(spec),
            *(Argument(words=("--env", name), because=why) for name, why in _names(spec)),
            *(_volume(mount) for mount in binds.mounts_of(spec, self)),
            *((Argument(words=("--workdir", spec.cwd), because="start in the working folder"),) if spec.cwd else ()),
            Argument(words=("--", plan.image), because="the image; nothing after -- is an option of podman-hpc"),
            *inside.inner_arguments(plan, _carried(spec), _unset(spec)),
        )

    def host_settings(self, spec: WrapSpec) -> tuple[Setting, ...]:
        return inside.host_side(_carried(spec))

    def check_image(self, image: str) -> str | None:
        if image.startswith("-"):
            return "an image's name cannot start with -"
        if image_kind(image) not in self.image_kinds:
            return f"podman-hpc takes {self.image_forms}"
        return None

    def check_mount(self, mount: Mount) -> str | None:
        return binds.forbidden(mount, ":", "separates the parts of a volume")

    def _devices(self, spec: WrapSpec) -> tuple[Argument, ...]:
        flag = self.device_flags.get(spec.vendor or "")
        given = {a.name for a in spec.container.arguments} | {a.words[0] for a in spec.container.arguments}
        if flag is None or not spec.container.device_flag or {flag, "--device=nvidia.com/gpu=all"} & given:
            return ()
        return (Argument(words=(flag,), because=f"{spec.vendor} devices and driver libraries of the host"),)


def _shared(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Use the host's network and memory, unless the site or the user sets something different."""
    given = {a.name for a in arguments}
    return tuple(
        Argument(words=(f"{option}={value}",), because=because)
        for option, other, value, because in _SHARED
        if not {option, other} & given
    )


def _entrypoint(spec: WrapSpec) -> tuple[Argument, ...]:
    if spec.container.verb == "run" or any(a.name == "--entrypoint" for a in spec.container.arguments):
        return ()
    return (Argument(words=("--entrypoint=",), because="run the command, not the image's entry point"),)


def _names(spec: WrapSpec) -> list[tuple[str, str]]:
    """Variables to pass by name, each with its reason. Carriers start with WINDLASS_, so `WINDLASS_*` includes them."""
    names = {
        s.name: s.because
        for s in spec.settings
        if s.inside and not s.joins and s.value is not None and _NAME.match(s.name)
    }
    names.update({name: "the numbers of this rank" for name in spec.rank_variables if not name.startswith("WINDLASS_")})
    names.update(_FAMILIES)
    return list(names.items())


def _carried(spec: WrapSpec) -> tuple[inside.Carried, ...]:
    return inside.carry((*spec.container.settings, *(s for s in spec.settings if s.inside and s.joins)))


def _unset(spec: WrapSpec) -> tuple[str, ...]:
    return inside.unset_names((*spec.container.settings, *(s for s in spec.settings if s.inside)))


def _volume(mount: Mount) -> Argument:
    text = f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    return binds.bind_argument(mount, ("--volume", text))
