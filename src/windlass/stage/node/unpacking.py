"""Archives on the node: `tar` unpacks one while its blocks arrive."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from windlass.agents.node.host import AgentError

_END_S = 120.0
_OPTIONS = {".tar": (), ".tar.gz": ("-z",), ".tgz": ("-z",), ".tar.zst": ("--zstd",), ".tzst": ("--zstd",)}
_OPTIONS.update({".tar.xz": ("-J",), ".txz": ("-J",), ".tar.bz2": ("-j",), ".tbz2": ("-j",)})


def tar_options(name: str) -> tuple[str, ...] | None:
    """How `tar` reads an archive of this name; None for what is no archive."""
    ending = next((end for end in _OPTIONS if name.endswith(end)), None)
    return _OPTIONS[ending] if ending is not None else None


def tar_stem(name: str) -> str:
    return name[: -len(next(end for end in _OPTIONS if name.endswith(end)))]


def unpack(blocks: Iterator[memoryview], folder: int, name: str) -> None:
    """Hands an archive to `tar` block by block, which unpacks it into an open folder; `AgentError` with its words where
    it cannot read it."""
    tar = subprocess.Popen(
        ["tar", "-x", "-f", "-", *(tar_options(name) or ()), "-C", "/proc/self/fd/%d" % folder, "--no-same-owner"],
        pass_fds=(folder,),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert tar.stdin is not None and tar.stderr is not None
    try:
        for data in blocks:
            rest = data
            while rest:
                rest = rest[tar.stdin.write(rest) :]
        tar.stdin.close()
    except BrokenPipeError:
        pass  # its own words say why
    except BaseException:
        tar.kill()
        tar.wait(_END_S)
        raise
    said = tar.stderr.read().decode(errors="replace").strip()
    if tar.wait(_END_S):
        raise AgentError("tar cannot unpack %s: %s" % (name, said[-300:] or "no message"))
