"""Decide whether a run folder or a plan was made by this user.

Ownership is not enough: in a cloned repository the files are ours and their content is not. Each run folder has a
random key, which signs what windlass executes from the folder: the plan, the record of detached agents, the batch
script and the secrets, which the ranks' shell reads. A secret of this user in the state folder seals that key for this
one folder. A job that cannot see the state folder gets the digest of the key from its batch script.

A folder without a valid signature can be displayed. Nothing in it is executed, mounted, signalled or written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from windlass.base.notation.shell import quote
from windlass.errors import MachineError, UsageError
from windlass.model.jsontext import from_json, to_json
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.folders import UntrustedError, keep_to_ourselves
from windlass.node.sys.reading import read_bytes

SIGNATURE_FILE = "signature.json"
SIGNED_FILES = ("plan.json", "agents.json", "batch.sh", "secrets.sh")
COMPONENTS = "components"
"""Folder of a job's run folder that contains the run folder of each component."""
_SECRET_BYTES = 32
_MAX_PLANS = 1000
"""Maximum number of plan digests that are stored."""


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a run folder, its seal, and the code of each signed file by its name."""

    version: int = 1
    key: str
    seal: str = ""
    """Empty if this user's secret could not be read."""
    files: dict[str, str] = {}
    file_key: str = ""
    """Signs the kept caches of this run if its job cannot see the secret."""


class NotTrustedError(UsageError):
    """A run folder or a plan file that this user neither made nor trusted."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path.parent.parent if path.parent.name == COMPONENTS else path
        hint = f"read its command and trust it:  windlass runs trust {quote(str(self.path))}"
        super().__init__(f"{path}: {why}. windlass runs nothing from it and does not change it", hint=hint)


# What windlass writes


def seal_folder(folder: Path, state_dir: Path) -> None:
    """Give a folder that this process created a new key. Without a usable state folder the key has no seal."""
    key = secrets.token_hex(_SECRET_BYTES)
    secret = _secret(state_dir, create=True)
    _write(folder, Signature(key=key, seal=_seal(folder, key, secret) if secret else ""))


def seal_component(job: Path, folder: Path) -> None:
    """Give the folder of a component a key that is derived from the key of its job's run folder."""
    found = _read(job)
    if found is not None:
        _write(folder, Signature(key=_component_key(found.key, folder.name)))


def component_folders(folder: Path) -> list[Path]:
    """Return the run folders of the components of a job, without links. Empty for any other run."""
    with contextlib.suppress(OSError):
        if not (above := folder / COMPONENTS).is_symlink():
            return sorted(path for path in above.iterdir() if path.is_dir() and not path.is_symlink())
    return []


def is_component(job: Path, folder: Path) -> bool:
    """Return whether this folder has the key that `seal_component` gives it."""
    above, found = _read(job), _read(folder)
    own = above is None or (found is not None and _same(found.key, _component_key(above.key, folder.name)))
    return own and not folder.is_symlink()


def sign_file(folder: Path, name: str, data: bytes) -> None:
    """Sign what windlass has written to this file of a run folder. Does nothing in a folder without a key."""
    found = _read(folder)
    if found is not None:
        files = {**found.files, name: _code(found.key, name, data)}
        _write(folder, msgspec.structs.replace(found, files=files))


def key_digest(folder: Path) -> str:
    """Return the digest with which a batch script proves the key of its run folder. Empty if the folder has no key."""
    found = _read(folder)
    return hashlib.sha256(found.key.encode()).hexdigest() if found is not None else ""


# The decision


def require_trust(folder: Path, state_dir: Path, *, signed_by: str = "") -> None:
    """Check that this user made the run folder and that its signed files are unchanged. Raises `NotTrustedError`.

    `signed_by` is a digest of the folder's key from a trusted source, such as the batch script of the job. On return,
    only this user can write to the folder.
    """
    found = _read(folder)
    why = _why_no_seal(folder, found, state_dir, signed_by)
    if why or found is None:
        raise NotTrustedError(folder, why)
    try:
        keep_to_ourselves(folder)
    except UntrustedError as error:
        raise NotTrustedError(folder, str(error.strerror)) from None
    for name, data in signed_content(folder).items():
        if not _same(_code(found.key, name, data), found.files.get(name, "")):
            what = "was changed" if name in found.files else "was added"
            raise NotTrustedError(folder, f"{name} {what} after windlass signed this run folder")
    for path in (folder / COMPONENTS, *(folder / COMPONENTS).glob("*")):
        if path.is_symlink():
            raise NotTrustedError(folder, f"{path.relative_to(folder)} is a link")
    for part in component_folders(folder):
        require_trust(part, state_dir, signed_by=signed_by)


def is_own_folder(folder: Path, state_dir: Path) -> bool:
    """Return whether this user's windlass made this folder."""
    return not _why_no_seal(folder, _read(folder), state_dir, "")


def plan_digest(data: bytes) -> str:
    """Return the digest with which a batch script that contains a plan proves that the plan is unchanged."""
    return hashlib.sha256(data).hexdigest()


def require_plan_trust(file: Path, data: bytes, state_dir: Path) -> None:
    """Check that this user has trusted the plan in `data`, from a file outside a run folder.

    Raises `NotTrustedError`.
    """
    if plan_digest(data) not in _trusted_plans(state_dir):
        raise NotTrustedError(file, "you have not trusted this plan")


def require_plan_digest(data: bytes, signed_by: str) -> None:
    """Check that the batch script that contains this plan also contains its digest. Raises `UsageError`."""
    if not _same(signed_by, plan_digest(data)):
        raise UsageError(
            "--plan -: the digest of this plan differs from --signed-by: one of them was changed",
            hint="create the script again with `windlass submit --dry-run`",
        )


def signed_content(folder: Path) -> dict[str, bytes]:
    """Return the signed files of a run folder, by their names."""
    found = {}
    for name in SIGNED_FILES:
        try:
            found[name] = read_bytes(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotTrustedError(folder, f"{name}: {error.strerror}") from None
    return found


def carry_file_key(folder: Path, path: Path, state_dir: Path) -> None:
    """Store in this run folder the key with which its job can check and sign this one file."""
    found, key = _read(folder), _file_key(folder, path, state_dir, create=True)
    if found is not None and key is not None:
        _write(folder, msgspec.structs.replace(found, file_key=key.hex()))


def seal_file(path: Path, folder: Path, state_dir: Path) -> None:
    """Sign a file that this run made: kept caches, which are too large to be read again.

    Does nothing if the file does not exist, or if there is neither a usable state folder nor a key in the run folder.
    """
    key = _file_key(folder, path, state_dir, create=True)
    with contextlib.suppress(OSError):
        if key is not None and _is_private_file(path.lstat()):
            replace_file(_seal_path(path), _file_seal(path, key).encode())


def why_no_file_seal(path: Path, folder: Path, state_dir: Path) -> str:
    """Return why the current version of this file has no valid `seal_file` signature of this user.

    Empty if it has one.
    """
    key = _file_key(folder, path, state_dir)
    if key is None:
        return f"windlass cannot check it without your secret in {state_dir}"
    try:
        if not _is_private_file(path.lstat()):
            return "it is not a plain file that only you can write"
        found = read_bytes(_seal_path(path), 1 << 10).decode("ascii", "replace")
        return "" if _same(found, _file_seal(path, key)) else "it has another signature"
    except OSError:
        return "it does not have your signature"


def trust_folder(folder: Path, content: Mapping[str, bytes], state_dir: Path) -> None:
    """Sign these files of a run folder, which the user has seen and trusts.

    Raises `UsageError` if the folder belongs to another user, who could change it later.
    """
    uid = folder.stat().st_uid
    if uid != os.geteuid():
        raise UsageError(f"{folder} belongs to uid {uid}", hint="copy the plan and trust the copy")
    secret = _secret(state_dir, create=True)
    if secret is None:
        raise _no_state(state_dir)
    found = _read(folder)
    sealed = found is not None and not _why_no_seal(folder, found, state_dir, "")
    if found is None or not sealed:  # otherwise the key is kept, because queued jobs use it
        found = Signature(key=secrets.token_hex(_SECRET_BYTES))
    files = {name: _code(found.key, name, data) for name, data in content.items() if name in SIGNED_FILES}
    _write(folder, msgspec.structs.replace(found, seal=_seal(folder, found.key, secret), files=files))
    for part in component_folders(folder):
        key = _component_key(found.key, part.name)
        names = {f"{COMPONENTS}/{part.name}/{name}": name for name in SIGNED_FILES}
        own = {names[path]: _code(key, names[path], data) for path, data in content.items() if path in names}
        _write(part, Signature(key=key, files=own))


def trust_plan(data: bytes, state_dir: Path) -> None:
    """Store that the user has seen and trusts this plan."""
    digest = plan_digest(data)
    lines = [line for line in _trusted_plans(state_dir) if line != digest][-_MAX_PLANS + 1 :]
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(_of_user(state_dir, "trusted-plans"), "\n".join([*lines, digest, ""]).encode())
    except OSError:
        raise _no_state(state_dir) from None


def _why_no_seal(folder: Path, found: Signature | None, state_dir: Path, signed_by: str) -> str:
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return f"this run folder belongs to uid {status.st_uid}"
    if found is None:
        return "this run folder has no signature: another user's windlass made it, or an earlier version"
    job = folder.parent.parent
    if folder.parent.name == COMPONENTS and (above := _read(job)) is not None:
        derived = _same(found.key, _component_key(above.key, folder.name))
        return _why_no_seal(job, above, state_dir, signed_by) if derived else "its key is not that of its job"
    if signed_by and _same(signed_by, hashlib.sha256(found.key.encode()).hexdigest()):
        return ""
    secret = _secret(state_dir)
    if secret is None:
        return f"windlass cannot check the signature of this run folder without your secret in {state_dir}"
    if not _same(found.seal, _seal(folder, found.key, secret)):
        return "the signature of this run folder is not yours, or the folder was copied here"
    return ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _code(key: str, name: str, data: bytes) -> str:
    return hmac.new(bytes.fromhex(key), name.encode() + b"\0" + data, "sha256").hexdigest()


def _component_key(key: str, name: str) -> str:
    return hmac.new(bytes.fromhex(key), b"component " + os.fsencode(name), "sha256").hexdigest()


def _seal(folder: Path, key: str, secret: bytes) -> str:
    """Return a seal that is valid for this folder only.

    All nodes see the same inode number, even if the paths differ.
    """
    return hmac.new(secret, f"run folder {folder.stat().st_ino} {key}".encode(), "sha256").hexdigest()


def _seal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.signature")


def _is_private_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _file_key(folder: Path, path: Path, state_dir: Path, *, create: bool = False) -> bytes | None:
    """Return the key for signatures of this file: from the run folder, otherwise derived from this user's secret."""
    if (found := _read(folder)) is not None and found.file_key:
        return bytes.fromhex(found.file_key)
    secret = _secret(state_dir, create=create)
    return hmac.digest(secret, b"kept file " + os.fsencode(path.resolve()), "sha256") if secret is not None else None


def _file_seal(path: Path, key: bytes) -> str:
    """Sign the inode number, size and time of a file. They identify it, because no other user can write it."""
    status = path.lstat()
    text = f"file {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _read(folder: Path) -> Signature | None:
    try:
        found = from_json(read_bytes(folder / SIGNATURE_FILE, 1 << 16), Signature)
        bytes.fromhex(found.key), bytes.fromhex(found.file_key)
    except (OSError, ValueError):
        return None
    return found


def _write(folder: Path, signature: Signature) -> None:
    try:
        replace_file(folder / SIGNATURE_FILE, to_json(signature))
    except OSError as error:
        raise MachineError(
            f"cannot write {folder / SIGNATURE_FILE}: {error.strerror}", hint="choose another place with --run-dir"
        ) from error


# The secret


def _of_user(state_dir: Path, name: str) -> Path:
    """Return the path of this user's file. Several users may share a state folder."""
    return state_dir / f"{name}.{os.geteuid()}"


def _own_content(path: Path) -> bytes | None:
    """Return the content of a file that only this user can read and write. None for every other file."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return read_bytes(path, 1 << 20)
    return None


def _secret(state_dir: Path, *, create: bool = False) -> bytes | None:
    """Return this user's secret, and create it if it does not exist. None if it cannot be read or created."""
    path = _of_user(state_dir, "secret")
    found = _own_content(path)
    if found is not None and len(found) == _SECRET_BYTES:
        return found
    if not create:
        return None
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(fresh, secrets.token_bytes(_SECRET_BYTES))
        with contextlib.suppress(FileExistsError):
            if found is not None or path.exists():  # damaged, or others could read it
                fresh.rename(path)
            else:
                path.hardlink_to(fresh)  # if two processes do this, only one creates the secret
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    return _own_content(path)


def _trusted_plans(state_dir: Path) -> list[str]:
    return (_own_content(_of_user(state_dir, "trusted-plans")) or b"").decode("ascii", "replace").split()


def _no_state(state_dir: Path) -> MachineError:
    return MachineError(
        f"cannot keep your secret in the state folder {state_dir}", hint="set WINDLASS_STATE to a folder that you own"
    )
