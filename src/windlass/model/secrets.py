"""Masking of values that look like tokens, keys or passwords, so that they reach no plan, log or record. Pure."""

from __future__ import annotations

import re

MASK = "••••••"

_NAME = re.compile(
    r"(^|_|-|\.)(token|tokens|secret|secrets|password|passwd|passphrase|pwd|credential|credentials|apikey|api_key|api-key"
    r"|access_key|access-key|private_key|private-key|auth_key|session_key|key)($|_|-|\.)",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(
    r"^(SSH_AUTH_SOCK|PWD|OLDPWD|TOKENIZERS_PARALLELISM|.*_PWD_DIR)$|tokens?_per|max_tokens|num_tokens|tokenizer|monkey|keyboard"
    r"|key_(size|dim|len|length|bias|value_heads)|(sort|primary|foreign)[_-]key",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\A(hf_[A-Za-z0-9]{16,}|ghp_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl(pat|rt)-[\w-]{16,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,}"
    r"|xox[bpars]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----.*)\Z",
    re.DOTALL,
)
_URL_PASSWORD = re.compile(r"\A(\w[\w+.-]*://[^/@\s:]*:)([^/@\s]+)(@.*)\Z", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret. Numbers of tokens and tokenizers are not secrets."""
    bare = name.lstrip("-")
    return bool(_NAME.search(bare)) and not _NOT_SECRET.search(bare)


def is_secret_value(value: str) -> bool:
    """Whether the value itself has the form of a known token, or of a URL with a password."""
    return bool(_VALUE.match(value) or _URL_PASSWORD.match(value))


def is_secret(name: str, value: str) -> bool:
    """Whether a named value has to be hidden. A plain small number never is."""
    if is_secret_value(value):
        return True
    return is_secret_name(name) and bool(value) and not re.fullmatch(r"[\d.]{1,12}|true|false|yes|no|none", value, re.I)


def secret_positions(words: tuple[str, ...]) -> tuple[int, ...]:
    """Positions of the words of a command line that hold a secret: `--token X` and `--token=X`, or a known form."""
    found: list[int] = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        before = words[at - 1] if at else ""
        if (
            is_secret_value(word)
            or (equals and is_secret(name, value) and " " not in name)
            or (before.startswith("-") and "=" not in before and not word.startswith("-") and is_secret(before, word))
        ):
            found.append(at)
    return tuple(found)


def mask_word(word: str) -> str:
    """The word with its secret part hidden; an option's name stays readable."""
    name, equals, value = word.partition("=")
    if equals and is_secret(name, value) and " " not in name:
        return f"{name}={MASK}"
    url = _URL_PASSWORD.match(word)
    return f"{url.group(1)}{MASK}{url.group(3)}" if url else MASK
