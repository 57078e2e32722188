"""Arguments that break careless quoting: each must arrive byte for byte."""

from __future__ import annotations

import os

HOSTILE = (
    "",
    " ",
    "two words",
    " leading and trailing ",
    "it's",
    'say "hi"',
    "'\"'\"'",
    "back\\slash\\",
    "line\nbreak",
    "ends with a newline\n",
    "tab\tand\rreturn",
    "$HOME ${HOME} $(touch pwned) `touch pwned`",
    "$'x' $\"y\" $((1+1)) $$ $? $@ $*",
    "* ? [a-z] {a,b} ~ ~root",
    "a;b && c || d | e > f < g &",
    "#not a comment",
    "!history ^x^y",
    "%d %s %% %n %t %j",
    "-n",
    "--",
    "--option=va lue",
    "=",
    "{}",
    "{unknown} {0} {{}}",
    "Ünïcödé 日本語 🚢",
    "\x01\x1b[31mcontrol\x7f",
    os.fsdecode(b"not utf-8: \xff\xfe"),
    "END_OF_RANK_SCRIPT",
    "x" * 5000,
)
