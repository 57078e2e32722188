"""Commands as a person sees them, on a real terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from pathlib import Path

from looping import each
from unit.cli.typed import argv, environment, windlass

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(*words: str, cwd: Path, columns: int = 80, **env: str) -> str:
    """What appears on a terminal while the command runs there."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.chdir(cwd)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = argv(*words)
        os.execve(command[0], command, environment(cwd, **{"TERM": "xterm-256color", **env}))
    shown = b""
    try:
        while data := os.read(terminal, 1 << 16):
            shown += data
    except OSError:  # the last process on it has gone
        pass
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown.decode().replace("\r\n", "\n")


def plain(shown: str) -> str:
    """Without colours."""
    return _ESCAPE.sub("", shown)


def test_a_site_is_folded_between_words_and_has_coloured_headings(tmp_path: Path) -> None:
    shown = on_terminal("sites", "show", "lumi", cwd=tmp_path)
    words = plain(shown)
    assert "\x1b[1mmachine\x1b[0m" in shown and "\x1b[2m" in shown
    assert [line for line in words.splitlines() if len(line) > 80 and " " in line.strip()] == []
    piped = windlass("sites", "show", "lumi", cwd=tmp_path).stdout
    assert "".join(words.split()) == "".join(piped.split()), "nothing is lost or added"
    assert not _ESCAPE.search(piped)


@each(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=str)
def test_an_error_is_red_and_its_hint_is_marked_unless_somebody_says_not_to(
    env: dict[str, str], coloured: bool, tmp_path: Path
) -> None:
    shown = on_terminal("plan", "--site", "nowhere", cwd=tmp_path, **env)
    assert ("windlass: \x1b[1;31merror\x1b[0m:" in shown and "\x1b[36mhint:\x1b[0m" in shown) is coloured
    assert bool(_ESCAPE.search(shown)) is coloured
    assert "windlass: error: unknown site 'nowhere'" in _ESCAPE.sub("", shown)


def test_who_forces_colours_gets_them_in_a_pipe_and_programs_get_none(tmp_path: Path) -> None:
    forced = {"FORCE_COLOR": "1"}
    assert "\x1b[1mmachine" in windlass("sites", "show", "lumi", cwd=tmp_path, env=forced).stdout
    assert "\x1b" not in windlass("sites", "show", "lumi", "--json", cwd=tmp_path, env=forced).stdout
    assert "\x1b" not in windlass("completion", "bash", cwd=tmp_path, env=forced).stdout
