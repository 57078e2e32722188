"""Lines of the rank script that show the output of a rank on a terminal while its lines grow. Pure text.

srun's daemons hand on whole lines alone: a progress bar would be seen when it is done. For the few ranks that a person
watches on a terminal, `tee` keeps a copy of what they write, and windlass draws the end of it. Lines still come from
the daemons: where there is no `tee`, or no named pipe on this file system, only the bar is missing.
"""

from __future__ import annotations

LIVE_FOLDER = "live"
"""In the run folder while a run goes on: one file for each of these ranks."""

LIVE_END = (
    "# All of its output is handed on before this script ends; a process that it left behind may hold it for ever.",
    'if [ -n "$w_tee" ]; then',
    "  exec >/dev/null 2>&1",
    '  (sleep 2; kill -KILL "$w_tee") & w_limit=$!',
    '  wait "$w_tee"; kill "$w_limit"',
    "fi",
)


def live_start(ranks: tuple[int, ...]) -> list[str]:
    """Sends the output of these ranks through `tee`; `w_tee` is empty in all others."""
    if not ranks:
        return []
    return [
        "",
        "# Somebody watches these ranks on a terminal: a copy of what they write shows progress bars while they grow.",
        f'w_tee= w_live="$WINDLASS_RUN_DIR/{LIVE_FOLDER}/$w_rank"',
        f'case "$w_rank" in {"|".join(map(str, ranks))})',
        '  if command -v tee >/dev/null && mkfifo -m 600 "$w_live.pipe" 2>/dev/null; then',
        '    (trap \'\' HUP INT TERM USR1 USR2; exec tee "$w_live") < "$w_live.pipe" &',
        '    w_tee=$!; exec > "$w_live.pipe" 2>&1; rm -f "$w_live.pipe"',
        "  fi ;;",
        "esac",
    ]


def live_command(ranks: tuple[int, ...]) -> list[str]:
    """Runs the command of such a rank where this script would not stay its parent otherwise. Signals reach all
    processes of a rank; the script waits, and ends as the command did."""
    if not ranks:
        return []
    return [
        'if [ -n "$w_tee" ]; then',
        "  trap : HUP INT TERM USR1 USR2",
        '  "$@"; w_code=$?',
        *(f"  {line}" for line in LIVE_END),
        "  trap - HUP INT TERM USR1 USR2",
        '  if [ "$w_code" -gt 128 ]; then kill -"$((w_code - 128))" $$; fi',
        '  exit "$w_code"',
        "fi",
    ]
