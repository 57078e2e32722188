"""Print how many options windlass has: the slots (one option in one command's parser) and the distinct names.

`python scripts/option_slots.py` prints one line per command and the totals. `--who` prints each option with its
commands. `--help` and `--help-all` are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from windlass.cli.main import command_names, command_parser


def option_slots() -> list[tuple[str, str]]:
    """Each option of each command and sub-command: (`env plan`, `--torch`)."""
    slots: list[tuple[str, str]] = []
    for name in command_names():
        command, parser = command_parser(name)
        slots += _slots(name, parser)
        for sub in (*getattr(command, "SUBS", ()), *(("trace record",) if name == "cache" else ())):
            slots += _slots(f"{name} {sub}", command.sub_parser(parser, sub))
    return slots


def _slots(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, nested in action.choices.items():
                yield from _slots(f"{name} {sub}", nested)
        elif action.option_strings and action.dest not in {"help", "help_all"}:
            yield name, next((o for o in action.option_strings if o.startswith("--")), action.option_strings[0])


def main(argv: list[str]) -> int:
    """Print the figures."""
    slots = option_slots()
    if "--who" in argv:
        for option in sorted({option for _, option in slots}):
            print(f"{option:<22} {', '.join(name for name, one in slots if one == option)}")
    else:
        for name, count in Counter(name for name, _ in slots).most_common():
            print(f"{count:>5}  {name}")
    print(f"{len(slots)} option slots, {len({option for _, option in slots})} distinct options")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
