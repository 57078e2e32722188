"""Mask values that look like tokens, keys or passwords, so that no plan, log or record contains them. Pure.

A word that is masked in error is only hidden from view: the rank gets the real one through the secrets file. Every
repetition in a pattern has a bound unless the end of a value follows it, so that no text takes long.
"""

from __future__ import annotations

import re
from itertools import pairwise

from windlass.base.tables import packaged_table

MASK = "••••••"

_PATTERNS = packaged_table(__file__, "secrets.toml")
_SECRET_WORDS = frozenset(
    (
        *("token", "tokens", "secret", "secrets", "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw"),
        *("pat", "credential", "credentials", "cred", "creds", "apikey", "accesskey", "accountkey", "privatekey"),
        *("authkey", "key", "dsn", "sas", "auth", "authorization", "bearer", "jwt", "cookie", "webhook"),
        *("connectionstring", "connstr", "signature", "sig", "passwort", "otp", "sessionid", "psk"),
    )
)
"""Parts of a name, in lower case, that indicate a secret."""
_STRONG_WORDS = _SECRET_WORDS - {"key", "pass", "pat", "auth", "pw", "sas", "tokens", "signature", "otp"}
"""The parts that indicate a secret in the middle of other text too."""
_ENDS = ("token", "password", "passwd", "secret", "apikey", "cookie")
"""Endings of names without a separator between their parts: PGPASSWORD, PBS_JOBCOOKIE."""
_NOT_SECRET = re.compile("".join(_PATTERNS["not_secret"]), re.IGNORECASE)
_FORMS = re.compile("".join(_PATTERNS["forms"]), re.DOTALL)
_HEADER = re.compile("".join(_PATTERNS["header"]))
_BEARER = re.compile(r"(?i)\b((?:Bearer|Basic|Token|ApiKey|Negotiate)\s{1,4})([\w.~+/=:-]{8,})")
_URL = re.compile(r"((?<![\w+.-])[A-Za-z][\w+.-]{0,30}://)([^/\s'\"<>@]{1,400}(?:@[^/\s'\"<>@]{1,100})?)(?=@[\w\[])")
_WEBHOOK = re.compile("".join(_PATTERNS["webhook"]))
_HEAD = re.compile("".join(_PATTERNS["head"]))
"""A name and the separator before its value: `x=`, `"x": `, `x => `, `('x', `, `<x>`."""
_OPTION = re.compile(r"(?:(?<![\w-])--?|\bsetenv {1,4})(?P<name>[A-Za-z][\w-]{1,60})(?:[\"'],)? {1,4}(?=[^\s-])")
_SAID = re.compile("".join(_PATTERNS["said"]))
"""In sentences: `the password is X`, `login me password X`."""
_LOGIN = re.compile(r"(?<!\S)((?:-u|--user|--proxy-user|--userpwd)[ =][\"']?[^\s:\"']{1,80}:)([^\s\"']{3,})")
_SHORT_OPTION = re.compile(r"(\bsshpass -p ?|\bmysql[\w ./=-]{0,80} -p)([^\s-]\S*)")
_QUOTE = re.compile(r"\\{0,3}[\"'`]")
_BARE = re.compile(r"[^\s\"'<>`]+")
_PLAIN_VALUE = re.compile("".join(_PATTERNS["plain_value"]), re.IGNORECASE)
_VALUE_END = re.compile(r"[,;&)\]}]")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USERS = frozenset(("git", "oauth2", "user", "root", "anonymous", "me"))


def _parts(name: str) -> list[str]:
    """Split a name: `SharedAccessKey` and `shared-access-key` give the same parts.

    Adjacent parts are also joined, for `API_KEY` and `conn_str`.
    """
    parts = [part.lower() for part in re.split(r"[_.\-\s]+", _HUMP.sub("_", name)) if part]
    return parts + [first + second for first, second in pairwise(parts)]


def is_secret_name(name: str) -> bool:
    """Return whether this variable or option contains a secret. Token counts and tokenizers are not secrets."""
    bare = name.lstrip("-")
    says = not _SECRET_WORDS.isdisjoint(_parts(bare)) or bare.lower().endswith(_ENDS)
    return says and not _NOT_SECRET.search(bare) and not _NOT_SECRET.search(bare.replace("-", "_"))


def is_secret_value(value: str) -> bool:
    """Return whether the value contains a known token, a URL with a password, or a named secret."""
    return mask_text(value) != value


def is_secret(name: str, value: str) -> bool:
    """Return whether a named value must be hidden. A small number or a reference to a variable is not hidden."""
    return is_secret_value(value) or (is_secret_name(name) and bool(value) and not _PLAIN_VALUE.fullmatch(value))


def mask_text(text: str) -> str:
    """Return the text with everything that looks like a secret hidden. The rest does not change."""
    text = _FORMS.sub(MASK, text)
    text = _WEBHOOK.sub(rf"\1{MASK}", text)
    text = _URL.sub(_masked_login, text)
    text = _BEARER.sub(lambda match: match[1] + MASK if _looks_random(match[2]) else match[0], text)
    text = _HEADER.sub(_masked_header, text)
    text = _LOGIN.sub(lambda match: match[0] if _is_plain(match[2]) else match[1] + MASK, text)
    text = _SHORT_OPTION.sub(rf"\1{MASK}", text)
    text = _masked_values(text, _HEAD)
    text = _masked_values(text, _OPTION)
    return _SAID.sub(_masked_said, text)


def _looks_random(value: str) -> bool:
    """Return whether letters and digits, or lower and upper case, are mixed as in no normal word."""
    letters = any(c.isalpha() for c in value)
    humps = sum(a.islower() and b.isupper() for a, b in pairwise(value))
    return letters and (any(c.isdigit() for c in value) or humps > 1 or value.endswith("="))


def _is_plain(value: str) -> bool:
    first = _VALUE_END.split(value, maxsplit=1)[0].rstrip(".:")
    return not first or MASK in value or bool(_PLAIN_VALUE.fullmatch(first))


def _masked_login(match: re.Match[str]) -> str:
    """Mask the part of a URL before the host: a password, or a token that replaces the user."""
    user, colon, password = match[2].partition(":")
    if colon:
        return match[0] if not password or MASK in password else f"{match[1]}{user}:{MASK}"
    secret = _looks_random(user) or len(user) >= 20
    return f"{match[1]}{MASK}" if secret and len(user) >= 8 and user not in _USERS else match[0]


def _masked_header(match: re.Match[str]) -> str:
    return match[0] if _is_plain(match[2]) else match[1] + MASK


def _masked_said(match: re.Match[str]) -> str:
    value = match["value"]
    shortest = 6 if match["name"].lower().startswith("pass") else 8
    if len(value) < shortest or not _looks_random(value) or _is_plain(value) or "/" in value[:1]:
        return match[0]
    return match[0][: -len(value)] + MASK


def _masked_values(text: str, heads: re.Pattern[str]) -> str:
    """Mask the values of secret names. If a value is kept, the search continues after its name."""
    done, position = [], 0
    for match in heads.finditer(text):
        if match.start("name") < position or not _names_secret(match, text):
            continue
        name, query = match["name"].lower(), _in_query(match, text)
        start, end = _value_span(text, match.end(), query=query)
        if start == end or _is_plain(text[start:end]) or (name == "pwd" and text[start] == "/"):
            continue
        if name == "key" and not query and text[start - 1 : start] not in {'"', "'"}:
            continue  # in running text, `key=value` names a sort order more often than a secret
        done += [text[position:start], MASK]
        position = end
    return "".join((*done, text[position:]))


def _names_secret(match: re.Match[str], text: str) -> bool:
    name = match["name"]
    strong = not _STRONG_WORDS.isdisjoint(_parts(name)) or name.lower().endswith(("key", *_ENDS))
    return (strong or _in_query(match, text)) and is_secret_name(name)


def _in_query(match: re.Match[str], text: str) -> bool:
    """Return whether the name is a parameter of a URL."""
    start = match.start("name")
    return start > 0 and text[start - 1] in "?&"


def _value_span(text: str, start: int, *, query: bool) -> tuple[int, int]:
    """Return the span of the value.

    It is between quotes, or it ends at white space or a quote. In a URL's query it ends at `&`.
    """
    if quote := _QUOTE.match(text, start):
        end = text.find(quote[0], quote.end())
        line = text.find("\n", quote.end())
        while end > 0 and text[end - 1] == "\\" and quote[0][0] != "\\":  # an escaped quote is part of the value
            end = text.find(quote[0], end + 1)
        stop = min((at for at in (end, line) if at >= 0), default=len(text))
        return quote.end(), stop
    bare = _BARE.match(text, start)
    if bare is None:
        return start, start
    end = text.find("&", start, bare.end()) if query else -1
    return start, end if end >= 0 else bare.end()


def secret_positions(words: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of arguments that contain a secret: `--token X`, `--token=X`, or a known form."""
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
    """Hide the secret part of an argument. The name of an option stays readable."""
    name, equals, value = word.partition("=")
    if equals and " " not in name and is_secret_name(name) and is_secret(name, value):
        return f"{name}={MASK}"
    masked = mask_text(word)
    return masked if masked != word else MASK


def mask_argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line that is safe to show or save."""
    hide = set(secret_positions(words))
    return tuple(mask_word(word) if index in hide else word for index, word in enumerate(words))
