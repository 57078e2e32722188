"""Choose which host paths the container shows, and where. Pure.

Paths may contain `${NAME}`, which the rank script expands on the node.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Mapping

import msgspec

from windlass.backends.containers.base import OptionalArgument, Runtime, WrapSpec
from windlass.errors import MachineError, UsageError
from windlass.model.origin import BUILTIN, SCOPES, Argument, Origin
from windlass.model.plan import Mount
from windlass.model.site import BindSpec

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ANY_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_FLAG = Origin(scope="flag", where="--bind")
PATTERN = re.compile(r"[\w./+-]*\*[\w./*+-]*")
"""An optional bind source of a site with a version pattern in its path. A node binds the newest version."""


def normal_path(path: str) -> str:
    """Remove doubled and trailing slashes, and replace `~` with `${HOME}`.

    `..` stays, because its meaning depends on symbolic links."""
    if path == "~" or path.startswith("~/"):
        path = "${HOME}" + path[1:]
    if not path or ".." in path.split("/"):
        return path
    return posixpath.normpath(path).replace("//", "/", 1)


def site_path(path: str) -> str:
    """Normalize a path from the catalog, where `$NAME` is allowed for `${NAME}`."""
    return normal_path(_ANY_VARIABLE.sub(lambda m: f"${{{m.group(1) or m.group(2)}}}", path))


def parse_bind(text: str, cwd: str) -> Mount:
    """Parse the user's `SRC[:DST[:ro|rw]]`. A relative source is relative to the working directory."""
    hint = "write --bind SRC, --bind SRC:DST or --bind SRC:DST:ro"
    parts = text.split(":")
    if len(parts) > 3 or (len(parts) == 3 and parts[2] not in {"ro", "rw"}):
        raise UsageError(f"--bind {text}: not SRC[:DST[:ro]]", hint=f"{hint}; a path with a colon cannot be bound")
    if not parts[0] or (len(parts) > 1 and not parts[1]):
        raise UsageError(f"--bind {text}: an empty path", hint=hint)
    source = normal_path(parts[0])
    if not source.startswith(("/", "${")):
        source = normal_path(f"{cwd}/{source}") if cwd else source
    target = normal_path(parts[1]) if len(parts) > 1 else source
    if not target.startswith(("/", "${")):
        raise UsageError(
            f"--bind {text}: {target} is not an absolute path", hint="the path in the container must start with /"
        )
    return Mount(source=source, target=target, because="requested by you", origin=_FLAG, read_only=parts[2:] == ["ro"])


def mount_of(spec: BindSpec) -> Mount:
    """Convert a bind from a site file to a mount of the plan."""
    source = site_path(spec.source_path)
    return Mount(
        source=source,
        target=site_path(spec.target) if spec.target else source,
        because=spec.because,
        origin=spec.origin or Origin(scope="site", where=spec.source),
        optional=spec.optional or spec.when.exists is not None,
        follow=spec.follow,
    )


def needed_path(path: str, because: str, *, optional: bool = False) -> Mount:
    """A path that the command must see at the same place as on the host."""
    return Mount(source=normal_path(path), target=normal_path(path), because=because, follow=True, optional=optional)


def combine(
    mounts: Iterable[Mount], links: Mapping[str, str], real: Mapping[str, str] | None = None
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """Return the mounts without duplicates, parents before children, and notes about the mounts that were dropped.

    Symbolic links are followed. If a mount is below one of the site's `links`, or has another path in `real`, the
    target tree is mounted too, so that absolute links work in the container. Two of the user's binds with the same
    target raise a `UsageError`. In other conflicts the user's bind replaces the site's bind."""
    chosen: dict[str, Mount] = {}
    notes: list[str] = []
    given = list(mounts)
    for mount in [*given, *(extra for m in given for extra in _behind_links(m, links, real or {}))]:
        old = chosen.get(mount.target)
        if old is None:
            chosen[mount.target] = mount
        elif old.source == mount.source:
            chosen[mount.target] = _merged(old, mount)
        else:
            chosen[mount.target] = _winner(old, mount, notes)
    kept = [m for m in chosen.values() if not _covered(m, chosen.values())]
    parents_first = sorted(kept, key=lambda m: sum(_below(m.target, other.target) for other in kept))
    return tuple(parents_first), tuple(notes)


def without(mounts: tuple[Mount, ...], path: str) -> tuple[Mount, ...]:
    """Remove the site's bind of this path (`--bind=-PATH`). Raises an error if the path is not bound."""
    path = normal_path(path)
    left = tuple(m for m in mounts if path not in {m.source, m.target})
    if len(left) == len(mounts):
        known = ", ".join(m.source for m in mounts) or "none"
        raise UsageError(f"--bind=-{path}: no default bind of this path to remove", hint=f"there are: {known}")
    return left


def settle(mounts: tuple[Mount, ...], environ: Mapping[str, str], there: Container[str]) -> tuple[Mount, ...]:
    """Return the mounts that this machine can make, without optional mounts whose path is missing.

    A required path that is missing raises an error, because some runtimes refuse to start and others silently bind
    nothing."""
    kept = []
    for mount in mounts:
        source = expanded(mount.source, environ)
        if mount.optional and PATTERN.fullmatch(mount.source):
            kept.append(mount)  # each node determines its version
        elif source is not None and source in there:
            kept.append(mount)
        elif not mount.optional:
            raise _missing(mount, source)
    return tuple(kept)


def expanded(path: str, environ: Mapping[str, str]) -> str | None:
    """The path with its variables replaced, or None if one of them is not set."""
    if any(not environ.get(name) for name in _VARIABLE.findall(path)):
        return None
    return _VARIABLE.sub(lambda match: environ[match.group(1)], path)


def refuse_variables(path: str, what: str) -> None:
    """Raise for a directory whose name looks like a variable, because the rank script would expand it."""
    if _VARIABLE.search(path):
        raise UsageError(
            f"the {what} {path!r} has the form of a variable in its name, which cannot be passed to a container",
            hint="rename it, or use a symbolic link",
        )


def mounts_of(spec: WrapSpec, runtime: Runtime) -> tuple[Mount, ...]:
    """All mounts of a rank: those of the plan, and the run folder, which is known only at run time."""
    mounts = spec.container.mounts
    refuse_variables(spec.run_dir, "run folder")
    if spec.run_dir and not runtime.shares_file_systems:
        run = needed_path(spec.run_dir, "the run folder: logs, records and snapshots' ledger")
        mounts, _ = combine((*mounts, msgspec.structs.replace(run, follow=False)), {})
    refuse_inexpressible(mounts, runtime)
    return mounts


def refuse_inexpressible(mounts: Iterable[Mount], runtime: Runtime) -> None:
    """Raise before anything starts if the runtime's syntax would misread one of the mounts."""
    for mount in mounts:
        wrong = runtime.check_mount(mount)
        if wrong:
            shown = mount.source if mount.source == mount.target else f"{mount.source} at {mount.target}"
            raise UsageError(f"{runtime.name} cannot bind {shown!r}: {wrong}", hint="rename it, or use a symbolic link")


def bind_argument(mount: Mount, words: tuple[str, ...]) -> Argument:
    """The arguments for this mount. An optional mount adds them only on nodes where the path exists."""
    if mount.optional:
        return OptionalArgument(words=words, because=mount.because, origin=mount.origin, exists=mount.source)
    return Argument(words=words, because=mount.because, origin=mount.origin)


def forbidden(mount: Mount, characters: str, meaning: str) -> str | None:
    """For `check_mount`: report which of these characters occurs in a path, and its meaning to the runtime."""
    for char in characters:
        if char in mount.source or char in mount.target:
            return f"{char!r} in a path {meaning}"
    return None


def _behind_links(mount: Mount, links: Mapping[str, str], real: Mapping[str, str]) -> list[Mount]:
    found: list[Mount] = []
    if mount.source == mount.target:
        for link, tree in links.items():
            if mount.source == link or _below(mount.source, link):
                found.append(_tree_of(mount, tree, f"{link} is a link into {tree}"))
    path = real.get(mount.source, mount.source)
    if mount.follow and path != mount.source:
        found.append(_tree_of(mount, path, f"{mount.source} is really {path}"))
    return found


def _tree_of(mount: Mount, tree: str, because: str) -> Mount:
    return Mount(
        source=tree, target=tree, because=because, origin=BUILTIN, read_only=mount.read_only, optional=mount.optional
    )


def _below(path: str, parent: str) -> bool:
    return path != parent and path.startswith(parent.rstrip("/") + "/")


def _strength(mount: Mount) -> int:
    return SCOPES.index(mount.origin.scope)


def _merged(old: Mount, new: Mount) -> Mount:
    strong, weak = (new, old) if _strength(new) > _strength(old) else (old, new)
    return msgspec.structs.replace(strong, optional=old.optional and new.optional, follow=strong.follow or weak.follow)


def _winner(old: Mount, new: Mount, notes: list[str]) -> Mount:
    if old.origin.scope == new.origin.scope == "flag":
        raise UsageError(
            f"--bind puts both {old.source} and {new.source} at {old.target}", hint="give one of them another target"
        )
    strong, weak = (new, old) if _strength(new) > _strength(old) else (old, new)
    notes.append(
        f"{weak.source} is not bound to {weak.target} ({weak.because}): {strong.source} is there ({strong.because})"
    )
    return strong


def _covered(mount: Mount, others: Iterable[Mount]) -> bool:
    """Whether a larger mount already shows a mount that neither the user nor the site requested."""
    if mount.origin.scope != "builtin":
        return False
    for other in others:
        if other is mount or other.optional or (other.read_only and not mount.read_only):
            continue
        if _below(mount.target, other.target) and _below(mount.source, other.source):
            tail = mount.target[len(other.target.rstrip("/")) :]
            if mount.source == other.source.rstrip("/") + tail:
                return True
    return False


def _missing(mount: Mount, source: str | None) -> UsageError | MachineError:
    if source is None:
        text = f"cannot bind {mount.source}: a variable in it is not set here"
    else:
        text = f"cannot bind {source}: no such file or folder on this node"
    if mount.origin.scope == "flag":
        return UsageError(text, hint="check the path of --bind")
    return MachineError(
        f"{text} ({mount.because}; {mount.origin.text()})", hint=f"leave it out with --bind=-{mount.source}"
    )
