"""Needs of packages as their metadata writes them."""

from __future__ import annotations

import random

from looping import each
from windlass.build.envs.requirements import Unmet, fits, unmet

HERE = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}


@each(
    ("version", "wanted", "met"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.0", ">=2.0,<3", True),
        ("2.9.1", ">=2.10", False),
        ("2.10", ">=2.9.5", True),
        ("1.26.4", "<2", True),
        ("2.0.0rc1", ">=2.0.0", False),
        ("2.0.0", ">2.0.0rc1", True),
        ("3.1.4", "~=3.1", True),
        ("4.0", "~=3.1", False),
        ("3.2.0", "~=3.1.2", False),
        ("1.4.2", "==1.4.*", True),
        ("1.5", "!=1.4.*", True),
        ("1.0.0", "==1.0", True),
        ("1.0", "something odd", True),
    ],
)
def test_versions_meet_specifiers_as_pip_reads_them(version: str, wanted: str, met: bool) -> None:
    assert fits(version, wanted) is met


@each(
    ("line", "missing"),
    [
        ("numpy", True),
        ("numpy>=1.0 ; python_version < '3.9'", False),
        ('numpy ; python_version >= "3.10" and sys_platform == "linux"', True),
        ("numpy ; extra == 'test'", False),
        ("numpy ; sys_platform == 'win32' or (platform_machine == 'x86_64' and python_version > '3.9')", True),
        ("numpy ; platform_machine in 'x86_64 aarch64'", True),
        ("numpy ; platform_machine not in 'x86_64 aarch64'", False),
        ("numpy (>=1.0)", True),
        ("numpy[all] @ https://example.org/numpy.whl", True),
        ("numpy ; nonsense $$", False),
        ("", False),
        ("!!!", False),
    ],
)
def test_markers_decide_whether_a_need_counts(line: str, missing: bool) -> None:
    assert bool(unmet({"a": [line]}, {}, HERE)) is missing


def test_what_is_there_in_another_version_is_named_with_it() -> None:
    assert unmet({"a": ["Num_Py>=2"]}, {"num-py": "1.26"}, HERE) == (Unmet("a", "Num_Py >=2", "1.26"),)


def test_no_line_however_broken_makes_it_fail() -> None:
    dice = random.Random(14)
    for _ in range(3000):
        line = "".join(dice.choice("ab1.[]()<>=!~;,'\" \nandorin_@\0é") for _ in range(dice.randrange(40)))
        unmet({"a": [line]}, {"a": "1", "b": line}, HERE)
