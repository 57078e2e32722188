"""The file that holds what a plan hides. Mode 0600, in the run folder, read by the rank script and by nothing else."""

from __future__ import annotations

from windlass.base.notation.shell import fillable, quote
from windlass.plan.inputs import Secrets

SECRETS_FILE = "secrets.sh"


def secrets_text(secrets: Secrets) -> str:
    """Shell text that sets one variable for each secret. Read where the rank's own variables are known."""
    filled = secrets.filled_from
    lines = ["# Values that plan.json hides. Keep this file to yourself; it is removed when the run ends."]
    for at, word in sorted(secrets.words.items()):
        value = fillable(word) if filled is not None and at >= filled else quote(word)
        lines.append(f"w_secret_word_{at}={value}")
    lines += [f"w_secret_env_{name}={quote(value)}" for name, value in sorted(secrets.env.items())]
    return "\n".join(lines) + "\n"
