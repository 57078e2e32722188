"""What is particular to one runtime."""

from __future__ import annotations

from typing import Any

import msgspec

from unit.containers.sites import PERLMUTTER, choose, command_line, spec_of
from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import WrapSpec
from windlass.model.condition import When
from windlass.model.origin import argv_of
from windlass.model.plan import ContainerPlan, Setting
from windlass.model.secrets import MASK

NO_SITE = "containers = []\n"


def _names(runtime: str, *settings: Setting, **plan: Any) -> dict[str, Setting]:
    return {s.name: s for s in get_runtime(runtime).host_settings(_spec(runtime, *settings, **plan))}


def _spec(runtime: str, *settings: Setting, **plan: Any) -> WrapSpec:
    container = ContainerPlan(runtime=runtime, image="/x.sif", executable=runtime, **plan)
    return WrapSpec(
        container=container,
        cwd="/w",
        run_dir="/w/r",
        vendor=None,
        settings=settings,
        rank_variables=("RANK", "WINDLASS_RANK"),
    )


def test_singularity_has_the_old_prefix() -> None:
    net = Setting(name="NCCL_NET", value="AWS Libfabric", because="test")
    assert set(_names("singularity", net)) == {"SINGULARITYENV_NCCL_NET", "SINGULARITYENV_RANK"}
    assert set(_names("apptainer", net)) == {"APPTAINERENV_NCCL_NET", "APPTAINERENV_RANK"}


def test_a_program_path_goes_in_front_by_apptainers_own_variable() -> None:
    path = Setting(name="PATH", value="/user-software/bin", because="test", prepend=True)
    made = _names("singularity", settings=(path,))["SINGULARITYENV_PREPEND_PATH"]
    assert (made.value, made.prepend) == ("/user-software/bin", True)


def test_settings_of_apptainer_itself_and_of_the_host_alone_stay_outside() -> None:
    own = Setting(name="APPTAINER_CONTAINLIBS", value="/usr/lib64/libcxi.so.1", because="test")
    host = Setting(name="SRUN_CPUS_PER_TASK", value="7", because="test", inside=False)
    assert set(_names("apptainer", own, host)) == {"APPTAINERENV_RANK"}


def test_a_secret_is_carried_by_its_present_value_and_never_written_down() -> None:
    token = Setting(name="HF_TOKEN", value=MASK, because="test", secret=True)
    assert _names("apptainer", token)["WINDLASS_INSIDE_HF_TOKEN"].value == "${HF_TOKEN}"
    assert not _names("apptainer", token)["WINDLASS_INSIDE_HF_TOKEN"].secret


def test_home_cannot_be_given_by_prefix_and_is_carried() -> None:
    home = Setting(name="HOME", value="/scratch/me", because="test")
    assert "WINDLASS_INSIDE_HOME" in _names("apptainer", home)


def test_a_setting_keeps_its_condition_on_the_way_in() -> None:
    plugin = Setting(name="NCCL_NET", value="x", because="test", when=When(found="librccl-net.so"))
    assert _names("apptainer", plugin)["APPTAINERENV_NCCL_NET"].when == plugin.when


def test_the_users_own_folder_option_replaces_ours() -> None:
    choice = choose(NO_SITE, "/x.sif", arguments=("--pwd /elsewhere",))
    assert command_line(choice, None).count("--pwd") == 1


def test_podman_hpc_takes_devices_network_and_entry_point_from_the_user_where_given() -> None:
    own = ("--device=nvidia.com/gpu=all", "--net=slirp4netns", "--ipc=private", "--entrypoint=/run.sh")
    words = command_line(choose(PERLMUTTER, "x/y:1", runtime="podman-hpc", arguments=own), "nvidia").split()
    assert "--gpu" not in words
    assert [w for w in words if w.startswith(("--net", "--ipc", "--entrypoint"))] == list(own[1:])


def test_podman_hpc_keeps_the_entry_point_where_the_site_says_run() -> None:
    choice = choose(PERLMUTTER, "x/y:1", runtime="podman-hpc")
    plan = msgspec.structs.replace(choice.plan, verb="run")
    words = argv_of(get_runtime("podman-hpc").wrap(msgspec.structs.replace(spec_of(choice, None), container=plan)))
    assert "--entrypoint=" not in words


def test_shifter_runs_the_entry_point_where_the_site_says_run() -> None:
    choice = choose(PERLMUTTER, "x/y:1")
    plan = msgspec.structs.replace(choice.plan, verb="run")
    words = argv_of(get_runtime("shifter").wrap(msgspec.structs.replace(spec_of(choice, None), container=plan)))
    assert "--entrypoint" in words


def test_charliecloud_shows_nothing_below_tmp_twice() -> None:
    spec = WrapSpec(
        container=ContainerPlan(runtime="charliecloud", image="/img", executable="ch-run"),
        cwd="/tmp/x",
        run_dir="/tmp/x/runs/1",
        vendor=None,
        settings=(),
        rank_variables=(),
    )
    assert argv_of(get_runtime("charliecloud").wrap(spec)) == ("ch-run", "--cd", "/tmp/x", "/img", "--")
