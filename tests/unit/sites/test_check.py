"""Checking a file: every problem at once, each on its line and in words that help."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from looping import each
from windlass.sites.check import check_file, check_text
from windlass.sites.folders import read_detect

NAMES = {"site": ("frontier", "lumi"), "hardware": ("cray-ex-mi250x",), "network": ("slingshot-11",)}


def problems(text: str, *, builtin: bool = False) -> list[str]:
    """All problems of a text, without the file's name."""
    found = check_text(dedent(text).lstrip(), file="f", stem="f", known=lambda kind: NAMES[kind], builtin=builtin)
    return [problem.sentence().removeprefix("f:") for problem in found]


def test_a_good_file_has_no_problem() -> None:
    text = """
        name = "mine"
        hardware = "cray-ex-mi250x"

        [sources.doc]
        where = "the manual"
        checked = "2026-01-02"

        [[settings]]
        name = "A"
        value = "1"
        because = "the manual says so"
        source = "doc"
        when = { nodes_min = 2 }
        """
    assert problems(text) == []


def test_many_problems_are_found_at_once_with_their_lines() -> None:
    text = """
        name = "mine"
        hardwear = "cray-ex-mi250x"
        network = "slingshot-10"
        largest_nodes = "many"

        [sources.doc]
        where = "the manual"
        checked = "yesterday"

        [scheduler]
        kind = "slrum"
        account_required = 1

        [[settings]]
        name = "A B"
        value = "1"
        because = " "
        source = "docs"

        [[settings]]
        name = "C"
        value = 7
        because = "x"
        when = { nodes_mni = 2 }
        """
    assert problems(text) == [
        "2: hardwear: unknown key 'hardwear' (did you mean 'hardware'?)",
        "3: network: unknown network 'slingshot-10' (did you mean 'slingshot-11'?)",
        "4: largest_nodes: must be a whole number, not 'many'",
        "8: sources.doc.checked: must be a date such as 2026-08-19, not 'yesterday'",
        "11: scheduler.kind: must be one of flux, none, pbs, slurm, not 'slrum' (did you mean 'slurm'?)",
        "12: scheduler.account_required: must be true or false, not 1",
        "15: settings[1].name: 'A B' is not a name of a variable",
        "17: settings[1].because: is empty: give the reason",
        "18: settings[1].source: unknown source 'docs' (did you mean 'doc'?)",
        "20: settings[2]: the key 'source' is missing",
        "22: settings[2].value: must be a text in quotes, not 7",
        "24: settings[2].when.nodes_mni: unknown key 'nodes_mni' (did you mean 'nodes_min'?)",
    ]


def test_broken_toml_is_one_problem_on_its_line() -> None:
    (problem,) = problems('name = "x"\ntitle = \n')
    assert problem.startswith("2: not TOML: Invalid value")
    assert problem.endswith("(nothing after it was checked)")


def test_a_key_given_twice_is_broken_toml() -> None:
    (problem,) = problems('name = "x"\nname = "y"\n')
    assert problem.startswith("2: not TOML: Cannot overwrite a value")


def test_a_bare_date_is_told_to_be_quoted() -> None:
    text = """
        name = "x"
        [sources.a]
        where = "m"
        checked = 2026-01-02
        """
    assert problems(text) == [
        '4: sources.a.checked: must be a text in quotes (write it in quotes: checked = "2026-01-02")',
        "4: sources.a.checked: must be a text in quotes, not 2026-01-02",
    ]


def test_presets_that_cannot_be_meant() -> None:
    text = """
        name = "x"

        [[binding.presets]]
        name = "a"
        ranks_per_node = 3
        cpus = "0-3:2-5"
        comm_cpus = "5-6"
        default = true
        because = "x"
        source = "own"

        [[binding.presets]]
        name = "a"
        ranks_per_node = 3
        cpus = "1:2:x"
        devices = [0]
        default = true
        because = "x"
        source = "own"
        """
    assert problems(text) == [
        "6: binding.presets[1].cpus: CPU 2 is given to local ranks 0 and 1",
        "6: binding.presets[1].cpus: has 2 lists for 3 ranks per node (one list per local rank, separated by colons)",
        "7: binding.presets[1].comm_cpus: CPUs 5 are given to ranks and to communication threads",
        "12: binding.presets[2]: preset 'a' is here twice",
        "15: binding.presets[2].cpus: not a CPU list: 'x' (write numbers and ranges, as in 0-3,8)",
        "16: binding.presets[2].devices: has 1 devices for 3 ranks per node",
        "17: binding.presets[2].default: 'a' is the default for 3 ranks per node already",
    ]


def test_a_node_must_add_up() -> None:
    text = """
        kind = "hardware"
        name = "x"

        [node]
        cores = 8
        threads_per_core = 2
        reserved = "0,40"

        [[node.domains]]
        cpus = "0-3"
        devices = [0, 1]

        [[node.domains]]
        cpus = "3-7"
        devices = [1]
        """
    assert problems(text) == [
        "5: node.cores: 8 cores of 2 threads are 16 CPUs, but the domains list 8",
        "7: node.reserved: CPUs 40 are in no domain",
        "14: node.domains[2].cpus: CPUs 3 are in two domains",
        "15: node.domains[2].devices: device 1 is in two domains",
    ]


def test_patterns_names_and_times() -> None:
    text = """
        name = "x"
        extends = "frontear"

        [detect]
        hostnames = ["nid[0-9", "ok"]
        variables = { SITE = "(" }

        [[queues]]
        name = "debug"
        nodes_min = 4
        nodes_max = 2
        time_max = "2 hours"

        [[queues]]
        name = "debug"

        [[containers]]
        runtime = "aptainer"
        default = true

        [[containers]]
        runtime = "edf"
        default = true

        [[scheduler.directives]]
        words = []
        because = "x"
        source = "own"
        when = { scheduler = ["sge"], nodes_min = 4, nodes_max = 2 }
        """
    assert problems(text) == [
        "2: extends: unknown site 'frontear' (did you mean 'frontier'?)",
        "5: detect.hostnames[1]: not a regular expression: unterminated character set at position 3 (in 'nid[0-9')",
        "6: detect.variables.SITE: not a regular expression: missing ), unterminated subpattern at position 0 (in '(')",
        "10: queues[1].nodes_min: is 4, more than nodes_max, which is 2",
        "12: queues[1].time_max: must be a time such as 2-00:00:00 or 12:00:00, not '2 hours'",
        "14: queues[2]: queue 'debug' is here twice",
        "18: containers[1].runtime: unknown container runtime 'aptainer' (did you mean 'apptainer'?)",
        "23: containers[2].default: 'aptainer' is the default already",
        "26: scheduler.directives[1].words: is empty",
        "29: scheduler.directives[1].when.nodes_min: never holds: nodes_min is 4, nodes_max is 2",
        "29: scheduler.directives[1].when.scheduler[1]: unknown scheduler 'sge' (known: slurm, pbs, flux, none)",
    ]


def test_what_windlass_fills_in_is_not_for_files() -> None:
    text = """
        name = "x"
        [[limits]]
        words = ["-c", "0"]
        because = "x"
        source = "own"
        origin = { scope = "site" }
        """
    assert problems(text) == ["6: limits[1].origin: 'origin' is not for files (windlass sets it)"]


def test_two_equal_settings_are_one_too_many_but_conditions_may_differ() -> None:
    item = '[[settings]]\nname = "A"\nvalue = "1"\nbecause = "x"\nsource = "own"\n'
    assert problems('name = "x"\n' + item + item + "when = { container = true }\n") == []
    twice = problems('name = "x"\n' + item + item)
    assert twice == ["7: settings[2]: setting 'A' is here twice under the same condition"]


def test_files_of_the_package_declare_every_source_and_are_called_by_their_name() -> None:
    text = 'name = "g"\nsource = "own"\n'
    assert problems(text) == []
    assert problems(text, builtin=True) == [
        "1: name: must be 'f', the name of the file, not 'g'",
        "2: source: unknown source 'own' (add a table [sources.own])",
    ]


def test_an_overlay_says_what_it_extends() -> None:
    (problem,) = problems('kind = "overlay"\n')
    assert problem == '1: kind: an overlay must name the site that it extends (extends = "frontier")'


@each("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_a_problem_and_no_crash(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    (problem,) = check_file(path)
    assert problem.sentence().startswith(f"{path}:1: cannot be read: ")


@each(
    "text",
    [
        "settings = 3",
        "settings = [3]",
        "binding = 'x'",
        "binding = { presets = [{ cpus = 3 }] }",
        "node = { domains = [{ cpus = 'x', devices = 3 }], l3 = [3], cores = 'x' }",
        "detect = { hostnames = 3, variables = 4 }",
        "partitions = { a = 3 }",
        "containers = [{ runtime = 3, images = ['a'] }]",
        "queues = [{ nodes_min = 'a', time_max = 3 }]",
        "sources = { a = 3 }",
        "scheduler = { directives = [{ words = [3], when = 3 }] }",
        "limits = [{ words = 'x' }]",
        "drop = 3",
        "kind = 3\nname = 4\nextends = 5\nhardware = 6",
    ],
)
def test_values_of_any_wrong_shape_are_problems_and_no_crash(text: str) -> None:
    assert problems(text)


@each(
    ("data", "said"),
    [
        (b"\xef\xbb\xbfname = 'a'\n", "byte order mark"),
        (b"name = 'a'\nname = 'b'\n", "not TOML: Cannot overwrite a value"),
        (b"name = 'a'\n[node]\nreserved = '0-99999999999'\n", "no node has a CPU 99999999999"),
        (b"name = 'a'\nx = " + b"[" * 5000 + b"]" * 5000 + b"\n", "nested too deeply"),
        (b"name = 'a'\n[[containers]]\nruntime = 'apptainer'\nimages = 3\n", "must be a list, not 3"),
        (b"name = 'a'\n[[node.domains]]\ncpus = '0-7'\ndevices = [[1], 2]\n", "must be a whole number, not a list"),
        (b"name = 'a'\n[[queues]]\nname = [1]\n", "must be a text in quotes, not a list"),
    ],
    ids=["mark", "key twice", "range", "brackets", "images", "devices", "queue"],
)
def test_odd_files_end_in_a_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "odd.toml").write_bytes(data)
    found = check_file(tmp_path / "odd.toml")
    assert said in " ".join(problem.sentence() for problem in found)
    assert read_detect(tmp_path / "odd.toml") is not None, "detection passes over it"
