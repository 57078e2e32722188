"""Every launcher keeps the same contract: words with reasons, one-to-one labels, the first failed rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.launcher_cases import SPECS, WORDS
from looping import each
from windlass.backends.launchers import get_launcher, launcher_names
from windlass.backends.launchers.base import Launcher, LaunchSpec
from windlass.errors import UsageError
from windlass.model.origin import Argument, ArgumentSpec, argument_key, argv_of
from windlass.model.site import LauncherSpec

pytestmark = pytest.mark.parametrize("name", launcher_names())
NO_CONTROL = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)


def made(name: str, spec: LaunchSpec, site: LauncherSpec | None = None) -> tuple[Argument, ...]:
    """The arguments; nothing for a launcher that has none, or not for so many nodes."""
    launcher = get_launcher(name)
    if not launcher.multi_node and spec.nodes > 1:
        with pytest.raises(UsageError):
            launcher.arguments(spec, site or LauncherSpec())
        return ()
    return launcher.arguments(spec, site or LauncherSpec())


def test_it_says_what_it_is(name: str) -> None:
    launcher = get_launcher(name)
    assert isinstance(launcher, Launcher)
    assert launcher.name == name
    assert launcher.variables.rank
    assert launcher.output in {"files", "stream", "pipes"}
    assert launcher.node_log.format(node_rank=7) == "node-0007.log"


@each("case", sorted(SPECS))
def test_every_word_is_text_and_has_a_reason(name: str, case: str) -> None:
    for argument in made(name, SPECS[case]):
        assert argument.words
        assert all(isinstance(word, str) and "\0" not in word for word in argument.words)
        assert argument.because.strip()
        assert argument.origin.text()


@each("case", sorted(SPECS))
def test_the_executable_comes_first_and_is_the_sites(name: str, case: str) -> None:
    arguments = made(name, SPECS[case], LauncherSpec(executable="/opt/site/bin/launch"))
    if arguments:
        assert arguments[0].words == ("/opt/site/bin/launch",)


@each("case", sorted(SPECS))
def test_no_option_is_said_twice(name: str, case: str) -> None:
    keys = [argument_key(argument.words) for argument in made(name, SPECS[case])[1:]]
    repeated = {key for key in keys if keys.count(key) > 1}
    assert not repeated


@each("case", sorted(SPECS))
def test_the_site_can_replace_any_default_and_add_its_own(name: str, case: str) -> None:
    for argument in made(name, SPECS[case])[1:]:
        own = ArgumentSpec(words=(*argument.words[:-1], argument.words[-1] + "0"), because="the site", source="page")
        if own.key != argument_key(argument.words):
            continue
        again = made(name, SPECS[case], LauncherSpec(arguments=(own,)))
        same = [a for a in again if argument_key(a.words) == own.key]
        assert [a.words for a in same] == [own.words]
        assert same[0].because == "the site"


def test_it_is_pure(name: str) -> None:
    spec = SPECS["with files"]
    assert made(name, spec) == made(name, spec)
    assert spec == SPECS["with files"]


def test_hostile_values_stay_one_word(name: str) -> None:
    hostile = "/run/a b'\"$(x)`y`*%;é\n/out"
    spec = LaunchSpec(nodes=1, ranks_per_node=1, host_file=hostile, output_dir=hostile, step_name="it's $(x) é")
    for word in argv_of(made(name, spec)):
        assert "/out" not in word or hostile in word or word == hostile


@given(rank=st.integers(min_value=0, max_value=98_303), text=NO_CONTROL)
def test_a_labelled_line_gives_back_rank_and_text(name: str, rank: int, text: str) -> None:
    launcher = get_launcher(name)
    if name == "srun" and text.startswith("slurmstepd"):
        return
    assert launcher.parse_line(WORDS[name].label(rank, text)) == (rank, text)


@given(text=st.text(max_size=60))
def test_no_line_at_all_breaks_the_parser(name: str, text: str) -> None:
    rank, rest = get_launcher(name).parse_line(text)
    assert rank is None or rank >= 0
    assert isinstance(rest, str)


@given(lines=st.lists(st.text(max_size=80), max_size=6), code=st.integers(min_value=-20, max_value=255))
def test_no_message_at_all_breaks_the_search_for_the_culprit(name: str, lines: list[str], code: int) -> None:
    get_launcher(name).parse_failure(lines, code)


def test_its_complaint_names_the_rank_and_how_it_ended(name: str) -> None:
    launcher = get_launcher(name)
    words = WORDS[name]
    if not words.exited:  # windlass holds its pipes, or it says nothing
        assert not launcher.names_failed_rank or launcher.output == "pipes"
        return
    exited = launcher.parse_failure(["noise", *words.exited], 143)
    killed = launcher.parse_failure(["noise", *words.killed], 143)
    assert exited is not None
    assert killed is not None
    assert (exited.rank, exited.code, exited.signal, exited.exit_code) == (2, 3, None, 3)
    assert (killed.rank, killed.code, killed.signal, killed.exit_code) == (2, None, 9, 137)


def test_a_rank_that_prints_a_complaint_is_not_believed(name: str) -> None:
    launcher = get_launcher(name)
    if launcher.output != "stream":  # the others' messages and the ranks' lines do not share a stream
        return
    words = WORDS[name]
    printed = [words.label(0, line) for line in (*words.exited, *words.killed)]
    assert launcher.parse_failure(printed, 1) is None


def test_a_host_file_has_every_host_once_in_order(name: str) -> None:
    hosts = tuple(f"nid{n:05d}" for n in range(10_000))
    text = get_launcher(name).host_file_text(hosts, LaunchSpec(nodes=len(hosts), ranks_per_node=12))
    if text is not None:
        assert [line.replace(":", " ").split()[0] for line in text.splitlines()] == list(hosts)
