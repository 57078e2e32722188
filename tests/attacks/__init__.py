"""Attacks: what another user of the same machine, network or folder may try, and what must come of it.

Every test here fails where the attack works. With `WINDLASS_ATTACKS=FILE` each appends one line of JSON to the file:
the attack, what was expected, what was seen, and counts of attempts, frames and bytes. `scripts/attacks_table.py FILE`
makes the table of `docs/explanation/security.md` from it; `results/security/attacks.jsonl` is the record it came from.

`stranger.py` acts as a second user. Attacks have seeds and no times to meet.
"""
