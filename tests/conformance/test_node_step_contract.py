"""Every launcher can start a small task on each node beside the ranks: words with reasons, no labels, a known place."""

from __future__ import annotations

import pytest

from windlass.backends.launchers import get_launcher, launcher_names
from windlass.backends.launchers.base import PLACEHOLDERS, NodeStep, NodeStepSpec
from windlass.model.origin import argv_of

pytestmark = pytest.mark.parametrize("name", launcher_names())
HOSTS = ("nid0003", "nid0005")
HOST_FILE = "{run_dir}/step-hosts"


def step(name: str, **values: object) -> NodeStep:
    return get_launcher(name).node_step(NodeStepSpec(**{"nodes": 2, **values}))  # type: ignore[arg-type]


def shapes(name: str) -> list[NodeStep]:
    return [step(name), step(name, hosts=HOSTS), step(name, hosts=HOSTS, host_file=HOST_FILE)]


def test_every_word_has_a_reason(name: str) -> None:
    for made in shapes(name):
        for argument in made.arguments:
            assert argument.words and all("\0" not in word for word in argument.words)
            assert argument.because.strip()


def test_no_line_is_labelled(name: str) -> None:
    for made in shapes(name):
        assert not {"--label", "--label-io", "--tag-output", "-prepend-pattern"} & set(argv_of(made.arguments))


def test_a_task_can_find_its_place(name: str) -> None:
    assert all(made.place for made in shapes(name))


def test_the_hosts_are_said_in_one_way(name: str) -> None:
    """As arguments, in a file, or by a look at the instance; only a launcher of one machine says none."""
    for made in shapes(name)[1:]:
        words = argv_of(made.arguments)
        said = any("nid" in word for word in words)
        in_file = made.host_file is not None
        if in_file:
            assert made.host_file in words
            assert [line.replace(":", " ").split()[0] for line in made.host_file_text.splitlines()] == list(HOSTS)
        assert said + in_file + bool(made.lookup_argv) == (1 if made.arguments else 0)


def test_a_step_without_a_host_file_needs_no_run_folder(name: str) -> None:
    for made in shapes(name)[:2]:
        assert made.host_file is None
        assert not any("{run_dir}" in word for word in argv_of(made.arguments))


def test_only_known_placeholders_are_left(name: str) -> None:
    for made in shapes(name):
        for word in argv_of(made.arguments):
            rest = word
            for placeholder in PLACEHOLDERS:
                rest = rest.replace(placeholder, "")
            assert "{run" not in rest and "{broker" not in rest


def test_the_sites_executable_starts_it(name: str) -> None:
    words = argv_of(step(name, executable="/opt/site/bin/launch").arguments)
    assert not words or "/opt/site/bin/launch" in words


def test_it_is_pure(name: str) -> None:
    assert step(name, hosts=HOSTS, host_file=HOST_FILE) == step(name, hosts=HOSTS, host_file=HOST_FILE)
