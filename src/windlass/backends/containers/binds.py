"""Which host paths are seen in the container, and where. Pure.

Paths may hold `${NAME}`, which the rank script expands on the node.
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
"""An optional source of a site's with versions in its path: a node binds the newest."""


def normal_path(path: str) -> str:
    """The path without doubled or trailing slashes, and with the home folder as a variable. `..` stays: what it means
    depends on links."""
    if path == "~" or path.startswith("~/"):
        path = "${HOME}" + path[1:]
    if not path or ".." in path.split("/"):
        return path
    return posixpath.normpath(path).replace("//", "/", 1)


def site_path(path: str) -> str:
    """A path of the catalog, which may say `$NAME` for `${NAME}`."""
    return normal_path(_ANY_VARIABLE.sub(lambda m: f"${{{m.group(1) or m.group(2)}}}", path))


def parse_bind(text: str, cwd: str) -> Mount:
    """The user's `SRC[:DST[:ro|rw]]`. A relative source is below the working folder."""
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
        raise UsageError(f"--bind {text}: {target} is not a full path", hint="the place inside has to start with /")
    return Mount(source=source, target=target, because="you asked for it", origin=_FLAG, read_only=parts[2:] == ["ro"])


def mount_of(spec: BindSpec) -> Mount:
    """A site's bind as a plan has it."""
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
    """A path that the command has to see at the same place as on the host."""
    return Mount(source=normal_path(path), target=normal_path(path), because=because, follow=True, optional=optional)


def combine(
    mounts: Iterable[Mount], links: Mapping[str, str], real: Mapping[str, str] | None = None
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """Mounts without repetition, parents before children, and what a person should know about those left out.

    Links are followed: a mount that lies behind one of the site's `links`, or that has another path in `real`,
    brings the tree it points into, so that absolute links work inside. Two of the user's own binds to one place are a
    `UsageError`; otherwise the user's bind wins over the site's."""
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
    """The mounts without the site's bind of this path (`--bind=-PATH`); an error where there is none."""
    path = normal_path(path)
    left = tuple(m for m in mounts if path not in {m.source, m.target})
    if len(left) == len(mounts):
        known = ", ".join(m.source for m in mounts) or "none"
        raise UsageError(f"--bind=-{path}: no default bind of this path to remove", hint=f"there are: {known}")
    return left


def settle(mounts: tuple[Mount, ...], environ: Mapping[str, str], there: Container[str]) -> tuple[Mount, ...]:
    """The mounts that this machine can make: optional ones are left out where the path is missing. A missing path that
    was asked for is an error, because some runtimes refuse to start and others bind nothing in silence."""
    kept = []
    for mount in mounts:
        source = expanded(mount.source, environ)
        if mount.optional and PATTERN.fullmatch(mount.source):
            kept.append(mount)  # which version a node has, the node says
        elif source is not None and source in there:
            kept.append(mount)
        elif not mount.optional:
            raise _missing(mount, source)
    return tuple(kept)


def expanded(path: str, environ: Mapping[str, str]) -> str | None:
    """The path with its variables filled in, or None where one of them is not set."""
    if any(not environ.get(name) for name in _VARIABLE.findall(path)):
        return None
    return _VARIABLE.sub(lambda match: environ[match.group(1)], path)


def refuse_variables(path: str, what: str) -> None:
    """A folder whose very name looks like a variable would be expanded on its way into the container."""
    if _VARIABLE.search(path):
        raise UsageError(
            f"the {what} {path!r} has the form of a variable in its name, which cannot be carried to a container",
            hint="rename it, or reach it through a link",
        )


def mounts_of(spec: WrapSpec, runtime: Runtime) -> tuple[Mount, ...]:
    """All mounts of a rank: those of the plan and the run folder, which only the run knows."""
    mounts = spec.container.mounts
    refuse_variables(spec.run_dir, "run folder")
    if spec.run_dir and not runtime.shares_file_systems:
        run = needed_path(spec.run_dir, "the run folder: logs, records and snapshots' ledger")
        mounts, _ = combine((*mounts, msgspec.structs.replace(run, follow=False)), {})
    refuse_inexpressible(mounts, runtime)
    return mounts


def refuse_inexpressible(mounts: Iterable[Mount], runtime: Runtime) -> None:
    """A mount that the runtime's syntax would misread is an error before anything starts."""
    for mount in mounts:
        wrong = runtime.check_mount(mount)
        if wrong:
            shown = mount.source if mount.source == mount.target else f"{mount.source} at {mount.target}"
            raise UsageError(
                f"{runtime.name} cannot bind {shown!r}: {wrong}", hint="use another name for it, or a link without it"
            )


def bind_argument(mount: Mount, words: tuple[str, ...]) -> Argument:
    """The words that make this mount; on nodes without the path they are left out where the mount is optional."""
    if mount.optional:
        return OptionalArgument(words=words, because=mount.because, origin=mount.origin, exists=mount.source)
    return Argument(words=words, because=mount.because, origin=mount.origin)


def forbidden(mount: Mount, characters: str, meaning: str) -> str | None:
    """For `check_mount`: which of these characters is in one of the paths, and what it means to the runtime."""
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
            f"--bind puts both {old.source} and {new.source} at {old.target}", hint="give one of them another place"
        )
    strong, weak = (new, old) if _strength(new) > _strength(old) else (old, new)
    notes.append(
        f"{weak.source} is not bound to {weak.target} ({weak.because}): {strong.source} is there ({strong.because})"
    )
    return strong


def _covered(mount: Mount, others: Iterable[Mount]) -> bool:
    """Whether a mount that nobody asked for is already seen through a larger one."""
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
