"""The file that holds what a plan hides. Mode 0600, in the run folder, read by the rank script and by nothing else."""

from __future__ import annotations

from windlass.notation.shell import quote
from windlass.plan.inputs import Secrets

SECRETS_FILE = "secrets.sh"


def secrets_text(secrets: Secrets) -> str:
    """Shell text that sets one variable for each secret."""
    lines = ["# Values that plan.json hides. Keep this file to yourself; it is removed when the run ends."]
    lines += [f"w_secret_word_{at}={quote(word)}" for at, word in sorted(secrets.words.items())]
    lines += [f"w_secret_env_{name}={quote(value)}" for name, value in sorted(secrets.env.items())]
    return "\n".join(lines) + "\n"
