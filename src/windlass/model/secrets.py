"""Masking of values that look like tokens, keys or passwords, so that they reach no plan, log or record. Pure.

A word that is masked in error costs nothing but its sight: the rank gets the real one through the secrets file. Every
repetition has a bound, so that no text takes long.
"""

from __future__ import annotations

import re
from itertools import pairwise

MASK = "••••••"

_SECRET_WORDS = frozenset(
    (
        *("token", "tokens", "secret", "secrets", "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw"),
        *("pat", "credential", "credentials", "cred", "creds", "apikey", "accesskey", "accountkey", "privatekey"),
        *("authkey", "key", "dsn", "sas", "auth", "authorization", "bearer", "jwt", "cookie", "webhook"),
        *("connectionstring", "connstr", "signature", "sig"),
    )
)
"""Parts of a name, in small letters, that say what it holds."""
_STRONG_WORDS = _SECRET_WORDS - {"key", "pass", "pat", "auth", "pw", "sas", "tokens", "signature"}
"""Those that mean it in the middle of other text too."""
_ENDS = ("token", "password", "passwd", "secret", "apikey", "cookie")
"""Of names that are written without a mark between their parts: PGPASSWORD, PBS_JOBCOOKIE."""
_NOT_SECRET = re.compile(
    r"^(SSH_AUTH_SOCK|PWD|OLDPWD|TOKENIZERS_PARALLELISM|.*_PWD_DIR)$|tokens?_per|max_tokens|num_tokens|tokenizer|monkey"
    r"|keyboard|key_(size|dim|len|length|bias|value_heads)|(sort|primary|foreign)[_-]key"
    r"|auth_(sock|type|method|mode|plugin)|token_(count|limit|id|ids|len|length|dim|size|type)|forward_pass|cookie_?cutter",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])("
    r"hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl(?:pat|rt|dt)-[\w-]{16,}|sk-[\w-]{16,}"
    r"|[sr]k_live_\w{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abprs]-[\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{10,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{10,4000}\.[\w-]{10,4000}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r")",
    re.DOTALL,
)
_BEARER = re.compile(r"\b((?:Bearer|Basic|Token)\s{1,4})([\w.~+/=-]{8,})", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"((?<![\w+.-])\w[\w+.-]{0,30}://[^/@\s:'\"]*:)([^/@\s'\"]+)(?=@)")
_URL_TOKEN = re.compile(r"((?<![\w+.-])\w[\w+.-]{0,30}://)([^/@\s:'\"]{20,})(?=@)")
_WEBHOOK = re.compile(
    r"(https?://(?:hooks\.slack\.com/\w+|(?:\w+\.)?discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]*webhook\.office\.com|outlook\.office(?:365)?\.com/webhook"
    r"|api\.telegram\.org)/)([^\s'\"?]+)"
)
_PAIR = re.compile(
    r"(?P<head>(?P<quote>\\?[\"']?)(?<![\w.])(?P<name>[A-Za-z][\w.-]{0,80})(?P=quote)\s{0,4}[:=]\s{0,4})"
    r"(?:(?P<mark>\\?[\"'])(?P<quoted>[^\"'\\]*)(?P=mark)|(?P<bare>[^\s\"',;&|(){}\[\]\\]+))"
)
_PLAIN_VALUE = re.compile(r"[\d.]{1,12}|true|false|yes|no|none|null|\$\{?\w+\}?|\{\w+\}", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _parts(name: str) -> list[str]:
    """`SharedAccessKey` and `shared-access-key` alike; neighbours are joined too, for `API_KEY` and `conn_str`."""
    parts = [part.lower() for part in re.split(r"[_.\-\s]+", _HUMP.sub("_", name)) if part]
    return parts + [first + second for first, second in pairwise(parts)]


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret. Numbers of tokens and tokenizers are not secrets."""
    bare = name.lstrip("-")
    says = not _SECRET_WORDS.isdisjoint(_parts(bare)) or bare.lower().endswith(_ENDS)
    return says and not _NOT_SECRET.search(bare) and not _NOT_SECRET.search(bare.replace("-", "_"))


def is_secret_value(value: str) -> bool:
    """Whether the value has a known token, a URL with a password, or a named secret anywhere in it."""
    return mask_text(value) != value


def is_secret(name: str, value: str) -> bool:
    """Whether a named value has to be hidden. A plain small number and a reference to a variable never are."""
    return is_secret_value(value) or (is_secret_name(name) and bool(value) and not _PLAIN_VALUE.fullmatch(value))


def mask_text(text: str) -> str:
    """Any text with what looks like a secret hidden and the rest as it was."""
    text = _FORMS.sub(MASK, text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _URL_PASSWORD.sub(rf"\1{MASK}", text)
    text = _URL_TOKEN.sub(rf"\1{MASK}", text)
    text = _WEBHOOK.sub(rf"\1{MASK}", text)
    return _PAIR.sub(_masked_pair, text)


def _masked_pair(match: re.Match[str]) -> str:
    name = match["name"]
    value = match["quoted"] if match["bare"] is None else match["bare"]
    if _STRONG_WORDS.isdisjoint(_parts(name)) and not name.lower().endswith(("key", *_ENDS)):
        return match[0]
    if not is_secret_name(name) or not value or _PLAIN_VALUE.fullmatch(value) or MASK in value:
        return match[0]
    if name.lower() == "key" and match["bare"] is not None:
        return match[0]  # `key=value` in the middle of a text names a sort order more often than a secret
    mark = match["mark"] or ""
    return f"{match['head']}{mark}{MASK}{mark}"


def secret_positions(words: tuple[str, ...]) -> tuple[int, ...]:
    """Positions of the words of a command line that hold a secret: `--token X` and `--token=X`, or a known form."""
    found: list[int] = []
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        before = words[index - 1] if index else ""
        if (
            is_secret_value(word)
            or (equals and is_secret(name, value) and " " not in name)
            or (before.startswith("-") and "=" not in before and not word.startswith("-") and is_secret(before, word))
            or (before in {"-u", "--user"} and ":" in word)
        ):
            found.append(index)
    return tuple(found)


def mask_word(word: str) -> str:
    """A word that holds a secret with that part hidden; an option's name stays readable."""
    name, equals, value = word.partition("=")
    if equals and " " not in name and is_secret_name(name) and is_secret(name, value):
        return f"{name}={MASK}"
    masked = mask_text(word)
    return masked if masked != word else MASK


def mask_argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command line as it may be shown or saved."""
    hide = set(secret_positions(words))
    return tuple(mask_word(word) if index in hide else word for index, word in enumerate(words))
