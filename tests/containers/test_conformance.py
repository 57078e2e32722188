"""What every container runtime has to do, shown by programs that read the real options and execute the command."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from containers.harness import NOT_UTF8, Seen, container, hostile, run_wrapped, show, standin_executable
from unit.containers.sites import choose_from
from windlass.backends.containers import get_runtime, runtime_names
from windlass.backends.containers.base import WrapSpec
from windlass.backends.containers.choose import ContainerRequest, ContainerSite
from windlass.errors import UsageError
from windlass.model.condition import When
from windlass.model.origin import Origin, argv_of
from windlass.model.plan import Mount, Setting

pytestmark = pytest.mark.parametrize("name", runtime_names())


def _spec(name: str, tmp_path: Path, **fields: Any) -> WrapSpec:
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    base: dict[str, Any] = {
        "container": container(name, standin_executable(name, tmp_path / "bin")),
        "cwd": str(tmp_path),
        "run_dir": str(run_dir),
        "vendor": None,
        "settings": (),
        "rank_variables": (),
    }
    return WrapSpec(**{**base, **fields})


def _plan(name: str, tmp_path: Path, **fields: Any) -> Any:
    return container(name, standin_executable(name, tmp_path / "bin"), **fields)


def _ok(seen: Seen) -> Seen:
    assert seen.code == 0, seen.stderr
    return seen


@pytest.mark.parametrize("verb", ["exec", "run"])
def test_hostile_arguments_arrive_byte_for_byte(name: str, verb: str, tmp_path: Path) -> None:
    spec = _spec(name, tmp_path, container=_plan(name, tmp_path, verb=verb))
    seen = _ok(run_wrapped(spec, show(*hostile(name)), work=tmp_path))
    assert seen.arguments == tuple(os.fsencode(word) for word in hostile(name))


def test_hostile_arguments_arrive_through_an_activation(name: str, tmp_path: Path) -> None:
    plan = _plan(name, tmp_path, activate="$WITH_CONDA")
    seen = _ok(
        run_wrapped(
            _spec(name, tmp_path, container=plan),
            show(*hostile(name)),
            work=tmp_path,
            image_env={"WITH_CONDA": "export ACTIVATED=yes"},
            host={"WITH_CONDA": "export ACTIVATED=yes"} if name == "charliecloud" else {},
        )
    )
    assert seen.arguments == tuple(os.fsencode(word) for word in hostile(name))
    assert seen.environ["ACTIVATED"] == b"yes"


def test_braces_in_an_activation_are_left_for_the_inside(name: str, tmp_path: Path) -> None:
    plan = _plan(name, tmp_path, activate='export SEEN="${ONLY_INSIDE}"')
    inside = {"ONLY_INSIDE": "of the image"}
    host = inside if name == "charliecloud" else {"ONLY_INSIDE": "of the host"}
    if name == "podman-hpc":
        host = {}
    spec = _spec(name, tmp_path, container=plan)
    seen = _ok(run_wrapped(spec, show(), work=tmp_path, image_env=inside, host=host))
    assert seen.environ["SEEN"] == b"of the image"


def test_values_of_the_plan_arrive_and_win_over_the_image(name: str, tmp_path: Path) -> None:
    values = {f"V{at}": word for at, word in enumerate(hostile(name)) if word} | {"NCCL_NET": "AWS Libfabric"}
    settings = tuple(Setting(name=key, value=value, because="test") for key, value in values.items())
    seen = _ok(
        run_wrapped(
            _spec(name, tmp_path, settings=settings),
            show(),
            work=tmp_path,
            image_env={"NCCL_NET": "Socket", "V0": "image"},
        )
    )
    assert {key: seen.environ.get(key) for key in values} == {k: os.fsencode(v) for k, v in values.items()}
    assert not [key for key in seen.environ if key.startswith("WINDLASS_INSIDE_")]


def test_rank_variables_arrive_and_win_over_the_image(name: str, tmp_path: Path) -> None:
    ranks = {"RANK": "3", "MASTER_ADDR": "nid000001", "MASTER_PORT": "20123"}
    spec = _spec(name, tmp_path, rank_variables=tuple(ranks))
    image = {} if get_runtime(name).starts_task else {"MASTER_ADDR": "localhost"}
    seen = _ok(run_wrapped(spec, show(), work=tmp_path, exports=ranks, image_env=image))
    assert {key: seen.environ[key].decode() for key in ranks} == ranks


def test_a_setting_that_the_node_declines_is_not_set_inside(name: str, tmp_path: Path) -> None:
    absent, present = When(exists=str(tmp_path / "absent")), When(exists=str(tmp_path))
    settings = (
        Setting(name="NEVER", value="1", because="test", when=absent),
        Setting(name="CHOSEN", value="a", because="test", when=absent),
        Setting(name="CHOSEN", value="b", because="test", when=present),
    )
    seen = _ok(run_wrapped(_spec(name, tmp_path, settings=settings), show(), work=tmp_path))
    assert "NEVER" not in seen.environ
    assert seen.environ["CHOSEN"] == b"b"


def test_an_unset_variable_stays_away_even_where_the_image_has_it(name: str, tmp_path: Path) -> None:
    settings = (Setting(name="NCCL_NET_PLUGIN", value=None, because="two plugins crash"),)
    host = {"NCCL_NET_PLUGIN": "host"}
    image = {} if name == "charliecloud" else {"NCCL_NET_PLUGIN": "image"}
    seen = _ok(run_wrapped(_spec(name, tmp_path, settings=settings), show(), work=tmp_path, host=host, image_env=image))
    assert "NCCL_NET_PLUGIN" not in seen.environ


def test_library_paths_go_in_front_of_the_images_own_and_not_to_the_host(name: str, tmp_path: Path) -> None:
    settings = (
        Setting(name="LD_LIBRARY_PATH", value="/host/lib:${EXTRA}", because="test", prepend=True, expand=True),
        Setting(name="PATH", value="/opt/tools/bin", because="test", prepend=True),
    )
    plan = _plan(name, tmp_path, settings=settings)
    host = {"EXTRA": "/from/node"}
    image = {} if name == "charliecloud" else {"LD_LIBRARY_PATH": "/image/lib"}
    seen = _ok(run_wrapped(_spec(name, tmp_path, container=plan), show(), work=tmp_path, image_env=image, host=host))
    expected = b"/host/lib:/from/node" + (b":/image/lib" if image else b"")
    assert seen.environ["LD_LIBRARY_PATH"] == expected
    assert seen.environ["PATH"].startswith(b"/opt/tools/bin:")
    if not get_runtime(name).starts_task:
        assert "LD_LIBRARY_PATH" not in seen.report["host"]  # type: ignore[operator]


def test_library_paths_go_behind_the_images_own(name: str, tmp_path: Path) -> None:
    settings = (
        Setting(name="LD_LIBRARY_PATH", value="/host/lib", because="test", append=True),
        Setting(name="PATH", value="/opt/tools/bin", because="test", append=True),
    )
    plan = _plan(name, tmp_path, settings=settings)
    image = {} if name == "charliecloud" else {"LD_LIBRARY_PATH": "/image/lib"}
    seen = _ok(run_wrapped(_spec(name, tmp_path, container=plan), show(), work=tmp_path, image_env=image))
    assert seen.environ["LD_LIBRARY_PATH"] == (b"/image/lib:" if image else b"") + b"/host/lib"
    assert seen.environ["PATH"].endswith(b":/opt/tools/bin")


def test_a_library_path_can_replace_the_images(name: str, tmp_path: Path) -> None:
    settings = (Setting(name="LD_LIBRARY_PATH", value="${CRAY}:/opt/lib", because="test", expand=True),)
    plan = _plan(name, tmp_path, settings=settings)
    seen = _ok(
        run_wrapped(
            _spec(name, tmp_path, container=plan),
            show(),
            work=tmp_path,
            image_env={"LD_LIBRARY_PATH": "/image/lib"} if name != "charliecloud" else {},
            host={"CRAY": "/opt/cray/lib"},
        )
    )
    assert seen.environ["LD_LIBRARY_PATH"] == b"/opt/cray/lib:/opt/lib"


def test_the_command_starts_in_the_working_folder(name: str, tmp_path: Path) -> None:
    assert _ok(run_wrapped(_spec(name, tmp_path), show(), work=tmp_path)).cwd == str(tmp_path)


def test_binds_are_understood_and_a_missing_optional_one_is_left_out(name: str, tmp_path: Path) -> None:
    data = tmp_path / "da ta" if name != "edf" else tmp_path / "data"
    data.mkdir()
    site = Origin(scope="site", where="test")
    mounts = (
        Mount(source=str(data), target="/data", because="test", origin=site),
        Mount(source="/nowhere/at/all", target="/nowhere/at/all", because="test", origin=site, optional=True),
    )
    spec = _spec(name, tmp_path, container=_plan(name, tmp_path, mounts=mounts[:1] if name == "edf" else mounts))
    seen = _ok(run_wrapped(spec, show(), work=tmp_path))
    found = [tuple(mount[:2]) if len(mount) > 1 else (mount[0], mount[0]) for mount in seen.report["mounts"]]  # type: ignore[attr-defined]
    assert (str(data), "/data") in found
    assert not any("nowhere" in source for source, _ in found)


def test_the_run_folder_is_seen_where_the_site_does_not_show_it_anyway(name: str, tmp_path: Path) -> None:
    seen = _ok(run_wrapped(_spec(name, tmp_path), show(), work=tmp_path))
    sources = [mount[0] for mount in seen.report["mounts"]]  # type: ignore[attr-defined]
    shown_anyway = get_runtime(name).shares_file_systems or (
        name == "charliecloud" and str(tmp_path).startswith("/tmp/")
    )
    assert (str(tmp_path / "run") in sources) != shown_anyway


def test_the_exit_code_of_the_command_is_the_exit_code(name: str, tmp_path: Path) -> None:
    assert run_wrapped(_spec(name, tmp_path), ("sh", "-c", "exit 7"), work=tmp_path).code == 7


def test_no_value_is_on_the_command_line(name: str, tmp_path: Path) -> None:
    settings = (Setting(name="TOKEN_X", value="hush-hush", because="test"),)
    spec = _spec(name, tmp_path, settings=settings)
    assert not any("hush-hush" in word for word in argv_of(get_runtime(name).wrap(spec)))


def test_every_word_has_a_reason(name: str, tmp_path: Path) -> None:
    settings = (Setting(name="A", value="$x", because="test"), Setting(name="B", value=None, because="test"))
    plan = _plan(
        name, tmp_path, activate="true", settings=(Setting(name="PATH", value="/x", because="t", prepend=True),)
    )
    spec = _spec(name, tmp_path, settings=settings, container=plan, vendor="nvidia", rank_variables=("RANK",))
    runtime = get_runtime(name)
    arguments = (*runtime.wrap(spec), *runtime.launcher_arguments(spec))
    assert all(argument.because and argument.words for argument in arguments)
    assert all(setting.because for setting in runtime.host_settings(spec))


def test_a_path_with_a_colon_cannot_be_bound_and_the_error_says_so(name: str, tmp_path: Path) -> None:
    mounts = (Mount(source="/data:old", target="/data", because="test", origin=Origin(scope="flag")),)
    spec = _spec(name, tmp_path, container=_plan(name, tmp_path, mounts=mounts))
    with pytest.raises(UsageError, match=r"cannot bind .*/data:old.*':'"):
        get_runtime(name).wrap(spec)
        get_runtime(name).files(spec)
        get_runtime(name).launcher_arguments(spec)


def test_a_run_folder_named_like_a_variable_is_refused(name: str, tmp_path: Path) -> None:
    if get_runtime(name).starts_task:
        with pytest.raises(UsageError, match="form of a variable"):
            get_runtime(name).files(_spec(name, tmp_path, run_dir="/x/${HOME}"))
            get_runtime(name).launcher_arguments(_spec(name, tmp_path, run_dir="/x/${HOME}"))
    else:
        with pytest.raises(UsageError, match="form of a variable"):
            get_runtime(name).wrap(_spec(name, tmp_path, run_dir="/x/${HOME}"))


def test_an_image_of_another_kind_is_refused_with_what_it_takes(name: str, tmp_path: Path) -> None:
    runtime = get_runtime(name)
    other = "x/y.toml" if "edf" not in runtime.image_kinds else "/images/x.sif"
    assert runtime.image_forms in (runtime.check_image(other) or "")


def test_bytes_that_the_runtime_would_change_are_refused_before_the_start(name: str, tmp_path: Path) -> None:
    """The stand-ins change them as the real apptainer and podman do; the others let them through."""
    spec = _spec(name, tmp_path)
    arrived = _ok(run_wrapped(spec, show(NOT_UTF8), work=tmp_path)).arguments == (os.fsencode(NOT_UTF8),)
    assert arrived == get_runtime(name).carries_bytes
    asked = ContainerRequest(image=spec.container.image, cwd="/", command=(NOT_UTF8,))
    with pytest.raises(UsageError, match="not UTF-8") if not arrived else nullcontext():
        choose_from(asked, ContainerSite(), runtime=name)
