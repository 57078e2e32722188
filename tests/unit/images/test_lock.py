"""`image lock` against a registry on loopback: digests written, renewed, kept and refused."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from looping import each
from unit.cli.typed import in_process
from windlass.build.images.lock import lock_base, registry_digest
from windlass.build.images.recipe import make_recipe
from windlass.build.images.render import containerfile_text, singularity_text
from windlass.build.images.spec import load_spec
from windlass.errors import MachineError, UsageError

FORMS = "application/vnd.oci.image.index.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry(ThreadingHTTPServer):
    """The part of the OCI distribution API that gives manifests. Optionally asks for an anonymous token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.manifests = {("team/base", "12"): b'{"schemaVersion": 2}'}
        self.realm = ""
        self.header: str | None = None
        self.redirect = ""


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        if self.path == "/token?service=here&scope=repository%3Ateam%2Fbase%3Apull":
            return self._send(200, json.dumps({"token": "anonymous"}).encode())
        _, version, *name, manifests, tag = self.path.split("/")
        data = self.server.manifests.get(("/".join(name), tag))
        if self.server.redirect:
            return self._send(307, b"", Location=self.server.redirect)
        if self.server.realm and self.headers["Authorization"] != "Bearer anonymous":
            scope = f'service="here",scope="repository:{"/".join(name)}:pull"'
            return self._send(401, b"", **{"WWW-Authenticate": f'Bearer realm="{self.server.realm}",{scope}'})
        if (version, manifests) != ("v2", "manifests") or FORMS not in self.headers["Accept"] or data is None:
            return self._send(404, b"{}")
        header = digest_of(data) if self.server.header is None else self.server.header
        return self._send(200, data, **{"Docker-Content-Digest": header} if header else {})

    def _send(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """The test prints nothing."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def spec_file(folder: Path, base: str, more: str = "") -> Path:
    path = folder / "own.toml"
    path.write_text(f'# mine\nname = "own"\nbase = "{base}"  # the base\n{more}packages = ["less"]\n')
    return path


def test_a_digest_is_written_then_unchanged_then_renewed_with_what_changed(registry: Registry, tmp_path: Path) -> None:
    base = f"{registry.host}/team/base:12"
    path = spec_file(tmp_path, base)
    first = digest_of(registry.manifests["team/base", "12"])
    done = in_process("image", "lock", "own.toml", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, ""), done.text
    assert f"own.toml: {base} is {first}: was not pinned" in " ".join(done.stdout.split())
    spec = f'# mine\nname = "own"\nbase = "{base}"  # the base\nlocked = "{base}@%s"\npackages = ["less"]\n'
    assert path.read_text() == spec % first
    assert "unchanged" in in_process("image", "lock", "own.toml", cwd=tmp_path).stdout
    assert path.read_text() == spec % first

    registry.manifests["team/base", "12"] = b'{"schemaVersion": 2, "moved": 1}'
    second = digest_of(registry.manifests["team/base", "12"])
    done = in_process("image", "lock", "own.toml", "--json", cwd=tmp_path)
    (lock,) = json.loads(done.stdout)
    assert (lock["before"], lock["digest"], lock["problem"]) == (first, second, "")
    assert path.read_text() == spec % second


def test_a_recipe_takes_the_digest_while_it_belongs_to_the_base(registry: Registry, tmp_path: Path) -> None:
    path = spec_file(tmp_path, f"{registry.host}/team/base:12")
    assert "not pinned" in containerfile_text(make_recipe(load_spec(str(path))))
    digest = lock_base(str(path)).digest
    recipe = make_recipe(load_spec(str(path)))
    assert not recipe.warnings
    assert f"FROM {registry.host}/team/base@{digest}\n" in containerfile_text(recipe)
    assert f"From: {registry.host}/team/base@{digest}\n" in singularity_text(recipe)
    assert recipe.labels["org.opencontainers.image.base.name"].endswith("base:12")
    assert recipe.labels["org.opencontainers.image.base.digest"] == digest
    path.write_text(path.read_text().replace('base:12"  #', 'base:13"  #'))
    other = make_recipe(load_spec(str(path)))
    assert other.base.endswith("team/base:13")
    assert "not pinned" in other.warnings[0]


def test_an_anonymous_token_is_asked_for(registry: Registry) -> None:
    registry.realm = f"http://{registry.host}/token"
    assert registry_digest(f"{registry.host}/team/base:12") == digest_of(registry.manifests["team/base", "12"])


@each(
    ("field", "value", "said"),
    [
        ("header", "", "does not fit"),
        ("header", "sha256:" + "0" * 64, "does not fit"),
        ("header", "md5:0", "does not fit"),
        ("manifests", {}, "Not Found"),
        ("realm", "http://registry.invalid/token", "is not encrypted"),
        ("realm", "file:///etc/passwd", "is not encrypted"),
        ("redirect", "http://registry.invalid/v2/", "Temporary Redirect"),
    ],
)
def test_no_digest_is_invented(field: str, value: object, said: str, registry: Registry, tmp_path: Path) -> None:
    setattr(registry, field, value)
    path = spec_file(tmp_path, f"{registry.host}/team/base:12")
    before = path.read_text()
    done = in_process("image", "lock", "own.toml", cwd=tmp_path)
    assert done.code == 1
    assert "not pinned" in done.stdout and said in " ".join(done.stdout.split()), done.text
    assert path.read_text() == before


def test_an_unreachable_registry_leaves_the_digest_as_it_is(registry: Registry, tmp_path: Path) -> None:
    path = spec_file(tmp_path, f"{registry.host}/team/base:12")
    digest = lock_base(str(path)).digest
    registry.shutdown()
    registry.server_close()
    before = path.read_text()
    lock = lock_base(str(path))
    assert (lock.before, lock.digest) == (digest, digest)
    assert "Connection refused" in lock.problem
    assert path.read_text() == before


@each("base", ["localhost/mine:1", "oci-archive:/images/a.tar", "debian@sha256:" + "0" * 64, "a.b/UP:1", "a.b/c:1?x"])
def test_a_base_without_a_tag_of_a_registry_is_not_asked_for(base: str) -> None:
    with pytest.raises(MachineError, match="not NAME:TAG of a registry"):
        registry_digest(base)


def test_a_copy_of_a_spec_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec_file(tmp_path, "debian:12").rename(tmp_path / "debian.toml")
    with pytest.raises(UsageError, match=r"debian\.toml exists already"):
        lock_base("debian")


def test_a_base_in_an_unusual_notation_is_left_to_the_user(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'name = "own"\nbase = """\\\n{registry.host}/team/base:12"""\n')
    with pytest.raises(UsageError, match="cannot find the place") as caught:
        lock_base(str(path))
    assert "@sha256:" in str(caught.value.hint)
