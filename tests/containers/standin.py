"""Container runtimes that execute without a container: they read the real programs' options, refuse any other, treat
the environment as the real ones do, and become the inner command on the host.

Run as `standin.py KIND ARGUMENTS…`. `STANDIN_IMAGE_ENV` is the image's environment (JSON); `STANDIN_REPORT` is a file
for what was understood. What each kind does was read from the sources of apptainer 1.5, podman-hpc 1.2 and shifter,
from ch-run 0.31 and from the documentation of the container engine; podman-hpc's treatment of `--` was tried on the
real one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

INSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def fail(text: str) -> Any:
    print(f"standin: {text}", file=sys.stderr)
    sys.exit(255)


def options(words: list[str], flags: set[str], valued: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options up to the first word that is none, as getopt stops there; and the rest."""
    found: list[tuple[str, str]] = []
    words = list(words)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            return found, ["--", *words]
        name, equals, value = word.partition("=")
        if name in flags:
            if equals:
                fail(f"{name} takes no value")
            found.append((name, ""))
        elif name in valued:
            found.append((name, value if equals else words.pop(0)))
        else:
            fail(f"unknown option {word}")
    return found, words


def through_json(text: str) -> str:
    """What Go makes of bytes that are not UTF-8 when it writes them as JSON."""
    return os.fsencode(text).decode("utf-8", errors="replace")


def become(words: list[str], env: dict[str, str], cwd: str | None, report: dict[str, Any]) -> None:
    if not words:
        fail("no command")
    target = os.environ.get("STANDIN_REPORT")
    if target:
        hosts = {k: v for k, v in os.environ.items() if not k.startswith("STANDIN_")}
        Path(target).write_text(json.dumps({**report, "host": hosts, "cwd": cwd, "words": words}))
    if cwd:
        os.chdir(cwd)
    os.environ["PATH"] = env.get("PATH", INSIDE_PATH)
    os.execvpe(words[0], words, env)


def image_env() -> dict[str, str]:
    found: dict[str, str] = json.loads(os.environ.get("STANDIN_IMAGE_ENV", "{}"))
    return found


def host_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("STANDIN_")}


def evaluated(text: str) -> str:
    """What a shell makes of the text in double quotes."""
    escaped = text.replace('"', '\\"')
    done = subprocess.run(["sh", "-c", f'printf %s "{escaped}"'], capture_output=True, timeout=30)
    return os.fsdecode(done.stdout)


def apptainer(words: list[str], prefix: str) -> None:
    verb = words[0] if words else ""
    if verb not in {"exec", "run"}:
        fail(f"unknown command {verb}")
    given, rest = options(
        words[1:],
        {"--nv", "--rocm", "--no-home", "--cleanenv"},
        {"--bind", "-B", "--pwd", "--cwd", "--home", "--workdir"},
    )
    mounts = []
    for name, value in given:
        if name in {"--bind", "-B"}:
            for part in filter(None, value.split(",")):
                pieces = part.split(":")
                if len(pieces) > 3 or pieces[2:] not in ([], ["ro"], ["rw"]):
                    fail(f"wrong bind syntax: {part}")
                if not Path(pieces[0]).exists():
                    fail(f"mount source {pieces[0]} doesn't exist")
                mounts.append(pieces)
    cwd = next((value for name, value in given if name in {"--pwd", "--cwd"}), None)
    image, command = rest[0], rest[1:]
    plain = os.environ.get(f"{prefix}_NO_EVAL") == "1"
    env = {k: v for k, v in host_env().items() if k not in {"PATH", "LD_LIBRARY_PATH"}}
    env = {k: v for k, v in env.items() if not k.startswith((f"{prefix}_", f"{prefix}ENV_"))}
    env.update(image_env())
    env.setdefault("PATH", INSIDE_PATH)
    for name, text in host_env().items():
        if name.startswith(f"{prefix}ENV_"):
            key = name[len(prefix) + 4 :]
            value = text if plain else evaluated(text)
            if key == "PREPEND_PATH":
                env["PATH"] = f"{value}:{env['PATH']}"
            elif key == "APPEND_PATH":
                env["PATH"] = f"{env['PATH']}:{value}"
            elif key != "HOME":
                env[key] = value
    if verb == "run" and not plain:
        command = [evaluated(word) for word in command]
    command = [through_json(word) for word in command]
    env = {name: through_json(value) for name, value in env.items()}
    become(command, env, cwd, {"image": image, "mounts": mounts, "options": given})


def podman_hpc(words: list[str]) -> None:
    if words[:1] != ["run"]:
        fail(f"unknown command {words[:1]}")
    own = {"--gpu", "--nccl", "--help"}
    given, rest = options(
        words[1:],
        {*own, "--rm"},
        {"--env", "-e", "--volume", "-v", "--workdir", "-w", "--network", "--net", "--ipc", "--entrypoint", "--device"},
    )
    if rest[:1] == ["--"]:
        rest = rest[1:]
    else:
        rest = [word for word in rest if word not in {*own, "--"}]  # click looks through the whole line
    env = {"PATH": INSIDE_PATH, "HOME": "/root", **image_env()}
    mounts = []
    for name, value in given:
        if name in {"--env", "-e"}:
            key, equals, text = value.partition("=")
            if equals:
                env[key] = text
            elif key.endswith("*"):
                env.update({k: v for k, v in host_env().items() if k.startswith(key[:-1])})
            elif key in os.environ:
                env[key] = os.environ[key]
        elif name in {"--volume", "-v"}:
            pieces = value.split(":")
            if len(pieces) not in {2, 3} or not Path(pieces[0]).exists():
                fail(f"cannot mount {value}")
            mounts.append(pieces)
    cwd = next((value for name, value in given if name in {"--workdir", "-w"}), None)
    command = [through_json(word) for word in rest[1:]]
    env = {name: through_json(value) for name, value in env.items()}
    become(command, env, cwd, {"image": rest[0], "mounts": mounts, "options": given})


def shifter(words: list[str]) -> None:
    given, rest = options(
        words, {"--clearenv", "--entrypoint"}, {"--image", "--volume", "-V", "--module", "--env", "-e", "--workdir"}
    )
    if rest[:1] != ["--"]:
        fail("no -- before the command")
    env = {k: v for k, v in host_env().items() if not k.startswith(("LD_", "RTLD_")) and k != "TMPDIR"}
    env.update(image_env())
    mounts = []
    for name, value in given:
        if name in {"--env", "-e"}:
            key, _, text = value.partition("=")
            if not key or not text:
                fail(f"Improperly formatted environment variable: {value}")
            env[key] = text
        elif name in {"--volume", "-V"}:
            for part in value.split(";"):
                pieces = part.split(":")
                if re.match(r"/(etc|var|opt/udiImage)(/|$)", pieces[1]) and pieces[1] != "/var/tmp":
                    fail(f"Invalid Volume Map: {part}")
                mounts.append(pieces)
    cwd = next((value for name, value in given if name == "--workdir"), None)
    image = next((value for name, value in given if name == "--image"), None)
    become(rest[1:], env, cwd, {"image": image, "mounts": mounts, "options": given})


def charliecloud(words: list[str]) -> None:
    if not os.environ.get("USER"):
        fail("$USER not set")
    given, rest = options(
        words, {"--home", "--write", "-w", "--no-passwd"}, {"--bind", "-b", "--cd", "-c", "--set-env", "--unset-env"}
    )
    if rest[1:2] != ["--"]:
        fail("no -- after the image")
    mounts = []
    for name, value in given:
        if name in {"--bind", "-b"}:
            source, _, target = value.partition(":")
            if not Path(source).exists():
                fail(f"can't bind: source not found: {source}")
            if not target.startswith("/") or target.startswith("/tmp/"):
                fail(f"--bind: bad destination {target}")
            mounts.append([source, target])
    env = {k: v for k, v in host_env().items() if k != "TMPDIR"}
    env["CH_RUNNING"] = "yes"
    cwd = next((value for name, value in given if name in {"--cd", "-c"}), "/")
    become(rest[2:], env, cwd, {"image": rest[0], "mounts": mounts, "options": given})


def engine(words: list[str]) -> None:
    """srun with the container engine: the task starts inside."""
    given, rest = options(words, set(), {"--environment"})
    edf = tomllib.loads(Path(dict(given)["--environment"]).read_text())
    if unknown := set(edf) - {"base_environment", "image", "workdir", "entrypoint", "mounts", "env", "annotations"}:
        fail(f"unknown keys {unknown}")
    host = {**host_env(), **image_env()}

    def expand(text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match.group(1):
                return "${" + match.group(2) + "}"
            return host[match.group(2)]

        return re.sub(r"\$(\$)?\{([A-Za-z_]\w*)\}", value, text)

    mounts = [expand(mount).split(":") for mount in edf.get("mounts", [])]
    for mount in mounts:
        if len(mount) not in {2, 3} or not Path(mount[0]).exists():
            fail(f"cannot mount {mount}")
    for name, text in edf.get("env", {}).items():
        if text:
            host[name] = expand(text)
        else:
            host.pop(name, None)
    become(rest, host, expand(edf["workdir"]) if "workdir" in edf else None, {"mounts": mounts, "edf": edf})


def pyxis(words: list[str]) -> None:
    """srun with the Pyxis plugin: the options that it registers, none of them twice, and enroot's rule that the image's
    variables win."""
    flags = {"--container-mount-home", "--no-container-mount-home", "--container-writable", "--container-readonly"}
    flags |= {
        "--container-remap-root",
        "--no-container-remap-root",
        "--container-entrypoint",
        "--no-container-entrypoint",
    }
    named = {"--container-image", "--container-mounts", "--container-workdir", "--container-name", "--container-env"}
    given, rest = options(words, flags, named)
    if len({name for name, _ in given}) != len(given):
        fail("an option of pyxis was specified multiple times")
    values = dict(given)
    if values["--container-image"].startswith((".", "/")) and not Path(values["--container-image"]).exists():
        fail("no such image")
    host = {**host_env(), **image_env()}
    host |= {name: host_env()[name] for name in values.get("--container-env", "").split(",") if name in host_env()}
    mounts = [mount.split(":") for mount in values.get("--container-mounts", "").split(",") if mount]
    for mount in mounts:
        if len(mount) not in {2, 3} or not Path(mount[0]).exists():
            fail(f"invalid format or missing source: {mount}")
    become(rest, host, values.get("--container-workdir"), {"mounts": mounts, "image": values["--container-image"]})


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind in {"apptainer", "singularity"}:
        apptainer(arguments, kind.upper())
    else:
        kinds = {
            "podman-hpc": podman_hpc,
            "shifter": shifter,
            "charliecloud": charliecloud,
            "edf": engine,
            "pyxis": pyxis,
        }
        kinds[kind](arguments)
