"""The shell text that runs inside: only where it is needed, and safe from the host's expansion."""

from __future__ import annotations

import subprocess
from pathlib import Path

from windlass.backends.containers import inside
from windlass.base.notation.shell import expandable, quote
from windlass.model.condition import When
from windlass.model.plan import ContainerPlan, HostLibs, Setting


def _words(activate: str, *args: object, host_libs: HostLibs | None = None) -> tuple[str, ...]:
    plan = ContainerPlan(runtime="apptainer", image="x", executable="x", activate=activate, host_libs=host_libs)
    made = inside.inner_arguments(plan, *args)  # type: ignore[arg-type]
    return made[0].words if made else ()


def test_nothing_to_do_means_no_shell() -> None:
    assert _words("") == ()
    assert _words("  \n", (), ()) == ()


def test_an_activation_runs_in_bash_and_hands_over_the_words() -> None:
    assert _words("$WITH_CONDA;") == ("bash", "-c", '$WITH_CONDA; exec "$@"', "bash")


def test_an_activation_with_a_comment_does_not_swallow_the_command() -> None:
    assert _words("true # comment")[2] == 'true # comment\nexec "$@"'


def test_nothing_in_the_text_is_expanded_on_the_host() -> None:
    carried = inside.carry(
        (
            Setting(name="A", value="1", because="x"),
            Setting(name="LD_LIBRARY_PATH", value="/x", because="x", prepend=True),
        )
    )
    for word in _words("source ${ROOT}/activate", carried, ("B",)):
        assert expandable(word) == quote(word)


def test_two_values_in_front_of_one_variable_travel_separately() -> None:
    settings = tuple(Setting(name="PATH", value=value, because="x", prepend=True) for value in ("/a", "/b"))
    assert [s.name for s in inside.host_side(inside.carry(settings))] == [
        "WINDLASS_INSIDE_PATH",
        "WINDLASS_INSIDE_PATH_2",
    ]


def test_an_unset_that_the_node_decides_is_left_to_the_host() -> None:
    settings = (
        Setting(name="A", value=None, because="x"),
        Setting(name="B", value=None, because="x", when=When(exists="/x")),
        Setting(name="C", value="1", because="x"),
        Setting(name="bad name; rm", value=None, because="x"),
    )
    assert inside.unset_names(settings) == ("A",)


def test_what_the_node_found_is_read_after_all_else_and_only_where_it_is_there(tmp_path: Path) -> None:
    text = _words("", host_libs=HostLibs(own="/x"))[2]
    node = tmp_path / "windlass-1-x"
    (node / "host-libs").mkdir(parents=True)
    (node / "cache").mkdir()
    env = {"PATH": "/usr/bin:/bin", "WINDLASS_CACHE_DIR": str(node / "cache")}
    argv = ["sh", "-c", text, "sh", "sh", "-c", 'echo "${FOUND-nothing}"']
    seen = [subprocess.run(argv, capture_output=True, text=True, timeout=30, env=env, check=True).stdout.strip()]
    (node / "host-libs/env.sh").write_text("export FOUND=it\n")
    seen.append(subprocess.run(argv, capture_output=True, text=True, timeout=30, env=env, check=True).stdout.strip())
    assert seen == ["nothing", "it"]
