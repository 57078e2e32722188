"""Pin the base images of specs by digest. The registry of a base gives the digest that its tag has now.

Speaks the HTTP API of the OCI distribution specification, without a login. TLS is off only for a registry on this
machine. A digest is written only if the registry named it and the received manifest has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import msgspec

from windlass.build.images import spec as specs
from windlass.errors import ConfigError, MachineError, UsageError, os_errors
from windlass.node.sys.atomic import replace_text
from windlass.sites.shape import line_index

_REPLY_S, _BODY_S, _MAX_BODY = 20.0, 60.0, 4 << 20
_HOST, _NAME = r"(?:[\w-]+\.[\w.-]+|localhost)(?::\d+)?|[\w.-]+:\d+", r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
_REFERENCE = re.compile(rf"(?:({_HOST})/)?({_NAME})(?::(\w[\w.-]{{0,127}}))?", re.ASCII)
_HERE = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution.manifest"
_KINDS = f"{_OCI}.index.v1+json, {_DOCKER}.list.v2+json, {_OCI}.manifest.v1+json, {_DOCKER}.v2+json"


class BaseLock(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of one base, before and now. `problem` says why the registry gave none."""

    spec: str
    base: str
    before: str
    digest: str
    problem: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could leave TLS."""

    def redirect_request(self, *_: object) -> None:
        return None


def lock_base(name: str) -> BaseLock:
    """Ask the registry of a spec's base for the digest, and write the digest into the user's file.

    A spec of windlass is copied to the current folder. Without an answer, no file is written. Raises `UsageError` if
    the spec cannot be read or the copy exists already.
    """
    source = specs.spec_path(name)
    text = specs.spec_text(source)
    spec = specs.parse_spec(text, str(source))
    own = name not in specs.spec_names()
    target = source.resolve() if own else Path(f"{name}.toml")
    if not own and target.exists():
        raise UsageError(f"{target} exists already", hint=f"to renew its digest: windlass image lock ./{target}")
    before = specs.locked_digest(spec)
    try:
        digest = registry_digest(spec.base)
    except MachineError as error:
        return BaseLock(spec=name, base=spec.base, before=before, digest=before, problem=str(error))
    if digest != before:
        with os_errors(f"write {target}", hint="give a file that you may write"):
            replace_text(target, _locked(text, spec, digest, str(source)), source.stat().st_mode & 0o666)
    return BaseLock(spec=name if own else str(target), base=spec.base, before=before, digest=digest, problem="")


def lock_text(lock: BaseLock) -> str:
    """Return one line: what changed, or why nothing did."""
    state = "unchanged" if lock.digest == lock.before else f"was {lock.before or 'not pinned'}"
    return f"{lock.spec}: {lock.base} is {lock.digest or 'not pinned'}: {lock.problem or state}"


def registry_digest(base: str) -> str:
    """Return the digest that the tag of `base` has now. Raises `MachineError` if its registry gives none."""
    found = _REFERENCE.fullmatch(base)
    if not found or not specs.in_registry(base):
        raise MachineError("the base is not NAME:TAG of a registry", hint="only such a base can be locked")
    host, name, tag = found[1] or "docker.io", found[2], found[3] or "latest"
    if host == "docker.io":
        host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
    try:
        data, named = _manifest(f"http{'' if _HERE.fullmatch(host) else 's'}://{host}/v2/{name}/manifests/{tag}")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        said = f"{host} gave no digest: {getattr(error, 'reason', '') or error}"
        raise MachineError(said, hint="lock it where the registry answers") from error
    if named != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise MachineError(f"{host}: the manifest does not fit the digest {named[:80]!r}", hint="ask its operator")
    return named


def _manifest(url: str) -> tuple[bytes, str]:
    """Return a manifest and the digest that the registry names. Asks for an anonymous token if needed."""
    try:
        return _get(url, {"Accept": _KINDS})
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.startswith("Bearer "):
            raise
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm")
    if url.startswith("https:") and not realm.startswith("https:"):
        raise ValueError(f"{realm[:80]!r} is not encrypted")
    reply = json.loads(_get(f"{realm}?{urllib.parse.urlencode(fields)}", {})[0])
    return _get(url, {"Accept": _KINDS, "Authorization": f"Bearer {reply.get('token') or reply['access_token']}"})


def _get(url: str, headers: dict[str, str]) -> tuple[bytes, str]:
    here = url.startswith("http:") and _HERE.fullmatch(urllib.parse.urlsplit(url).netloc)
    if not here and not url.startswith("https:"):
        raise ValueError(f"{url[:80]!r} is not encrypted")
    opener = urllib.request.build_opener(_NoRedirects(), *([urllib.request.ProxyHandler({})] if here else []))
    end, data = time.monotonic() + _BODY_S, b""
    with opener.open(urllib.request.Request(url, headers=headers), timeout=_REPLY_S) as reply:
        while piece := reply.read1(1 << 16):
            data += piece
            if len(data) > _MAX_BODY or time.monotonic() > end:
                raise OSError("its answer is too long or too slow")
        return data, reply.headers.get("Docker-Content-Digest", "")


def _locked(text: str, spec: specs.ImageSpec, digest: str, file: str) -> str:
    """Return the text of a spec with this digest. Every other line stays. Raises `UsageError` for unusual notation."""
    lines, index, locked = text.split("\n"), line_index(text), f"{spec.base}@{digest}"
    start = index["locked",] - 1 if ("locked",) in index else index["base",]
    lines[start : index.get(("locked",), start)] = [f'locked = "{locked}"']
    with contextlib.suppress(ConfigError):
        if specs.parse_spec("\n".join(lines), file) == msgspec.structs.replace(spec, locked=locked):
            return "\n".join(lines)
    raise UsageError(f"{file}: cannot find the place of the digest", hint=f'add the line: locked = "{locked}"')
