"""Which runtime is taken, and what errors say before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from looping import each
from unit.containers.sites import FRONTIER, LUMI, PERLMUTTER, choose, choose_from, command_line
from windlass.backends.containers.base import image_kind
from windlass.backends.containers.choose import ContainerRequest, ContainerSite
from windlass.errors import MachineError, UsageError
from windlass.model.site import StorageSpec

NO_SITE = "containers = []\n"


@each(
    ("image", "kind"),
    [
        ("x.sif", "sif"),
        ("/a/B.SIF", "sif"),
        ("a.sqsh", "squashfs"),
        ("./env.toml", "edf"),
        ("docker://rocm/pytorch:latest", "uri"),
        ("oci-archive:x.tar", "uri"),
        ("/images/root", "directory"),
        ("root/", "directory"),
        ("nvcr.io/nvidia/pytorch:25.06-py3", "registry"),
        ("ubuntu", "registry"),
    ],
)
def test_the_form_of_an_image_is_told_by_its_name(image: str, kind: str) -> None:
    assert image_kind(image) == kind


@each(
    ("image", "runtime"),
    [
        ("x.sif", "apptainer"),
        ("docker://x", "apptainer"),
        ("/images/root", "charliecloud"),
        ("x.sqfs", "charliecloud"),
        ("x.toml", "edf"),
        ("ubuntu:24.04", "podman-hpc"),
    ],
)
def test_without_a_site_the_form_decides(image: str, runtime: str) -> None:
    assert choose(NO_SITE, image).plan.runtime == runtime


def test_the_sites_entries_come_before_the_form() -> None:
    assert choose(LUMI, "/images/root").plan.runtime == "singularity"
    assert choose(FRONTIER, "x.sif").plan.runtime == "apptainer"
    assert choose(PERLMUTTER, "x/y:1").plan.runtime == "shifter"


def test_runtime_by_flag_wins_and_still_takes_the_sites_entry_for_it() -> None:
    choice = choose(PERLMUTTER, "x/y:1", runtime="podman-hpc")
    assert [a.words for a in choice.plan.arguments] == [("--nccl",)]


def test_an_unknown_runtime_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown container runtime 'aptainer'") as caught:
        choose(LUMI, "x.sif", runtime="aptainer")
    assert "'apptainer'" in (caught.value.hint or "")


def test_an_image_that_the_runtime_cannot_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"docker://rocm/pytorch:latest"):
        choose(FRONTIER, "rocm/pytorch:latest", runtime="apptainer")
    with pytest.raises(UsageError, match="cannot start with -"):
        choose(NO_SITE, "-x.sif")


def test_conditions_of_arguments_are_decided_with_the_chosen_runtime() -> None:
    assert choose(PERLMUTTER, "x/y:1", runtime="podman-hpc", nodes=1).plan.arguments == ()


def test_users_container_arguments_are_added_and_defaults_removed() -> None:
    choice = choose(PERLMUTTER, "x/y:1", arguments=("--env A=b", "~--module", "--clearenv"))
    assert [a.words for a in choice.plan.arguments] == [("--env", "A=b"), ("--clearenv",)]
    with pytest.raises(UsageError, match="no default of this name") as caught:
        choose(PERLMUTTER, "x/y:1", arguments=("~--modul",))
    assert "--module" in (caught.value.hint or "")


def test_the_device_flag_can_be_removed() -> None:
    choice = choose(FRONTIER, "/x.sif", arguments=("~--rocm",))
    assert "--rocm" not in command_line(choice, "amd")
    assert "--nv" in command_line(choose(FRONTIER, "/x.sif"), "nvidia")
    assert "--" not in command_line(choose(FRONTIER, "/x.sif"), "intel").replace("--bind", "").replace("--pwd", "")


def test_packages_of_the_home_folder_are_kept_out_unless_home_is() -> None:
    assert "PYTHONNOUSERSITE" in {s.name for s in choose(FRONTIER, "/x.sif").settings}
    assert "PYTHONNOUSERSITE" not in {s.name for s in choose(FRONTIER, "/x.sif", arguments=("--no-home",)).settings}


def test_planning_needs_no_image_but_running_does(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.sif")
    assert choose(NO_SITE, missing).plan.image == missing
    with pytest.raises(UsageError, match=r"there is no such image"):
        choose(NO_SITE, missing, environ={}, cwd=str(tmp_path))


def test_a_relative_image_is_looked_for_in_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "x.sif").touch()
    choice = choose(NO_SITE, "x.sif", environ={}, cwd=str(tmp_path))
    assert choice.plan.image == str(tmp_path / "x.sif")


def test_an_image_path_may_hold_a_variable(tmp_path: Path) -> None:
    (tmp_path / "x.sif").touch()
    choice = choose(NO_SITE, "${IMAGES}/x.sif", cwd=str(tmp_path), environ={"IMAGES": str(tmp_path)})
    assert choice.plan.image == "${IMAGES}/x.sif"
    with pytest.raises(UsageError, match="a variable in it is not set"):
        choose(NO_SITE, "${IMAGES}/x.sif", cwd=str(tmp_path), environ={})


def test_on_the_machine_missing_paths_of_the_site_are_an_error_and_the_user_can_remove_them(tmp_path: Path) -> None:
    (tmp_path / "x.sif").touch()
    bind = f'{{source_path = "{tmp_path}/no", because = "b", source = "s"}}'
    site = f'[[containers]]\nruntime = "apptainer"\nbinds = [{bind}]\n'
    where = {"environ": {}, "cwd": str(tmp_path)}
    with pytest.raises(MachineError, match="cannot bind"):
        choose(site, "x.sif", **where)
    choice = choose(site, "x.sif", binds=(f"-{tmp_path}/no",), **where)
    assert [m.source for m in choice.plan.mounts] == [str(tmp_path)]


def test_a_working_folder_behind_a_link_is_seen_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x.sif").touch()
    (tmp_path / "link").symlink_to("real")
    choice = choose(NO_SITE, "x.sif", environ={}, cwd=str(tmp_path / "link"))
    assert [m.source for m in choice.plan.mounts] == [str(tmp_path / "link"), str((tmp_path / "real").resolve())]


def test_a_working_folder_named_like_a_variable_is_refused() -> None:
    with pytest.raises(UsageError, match="form of a variable"):
        choose(NO_SITE, "x.sif", cwd="/work/${HOME}")


def test_a_bind_that_the_runtime_cannot_express_is_refused_while_planning() -> None:
    with pytest.raises(UsageError, match=r"apptainer cannot bind '/a,b'"):
        choose(NO_SITE, "/x.sif", binds=("/a,b",))
    assert choose(NO_SITE, "x/y:1", binds=("/a,b",)).plan.mounts[0].source == "/a,b"


def test_a_wrapping_program_is_an_activation_that_changes_the_words() -> None:
    site = '[[containers]]\nruntime = "apptainer"\nactivate = \'set -- /host/adapt.sh "$@"\'\n'
    line = command_line(choose(site, "/x.sif"), None)
    assert line.endswith('/x.sif bash -c set -- /host/adapt.sh "$@"; exec "$@" bash')


def test_paths_that_the_plan_needs_are_bound() -> None:
    choice = choose(NO_SITE, "/x.sif", needs=(("/lus/env", "the environment"), ("/work/me/sub", "covered")))
    assert [m.source for m in choice.plan.mounts] == ["/work/me", "/lus/env"]


def test_a_baked_image_on_several_nodes_is_told_what_it_has_to_bring() -> None:
    assert "falls back to TCP" in choose(NO_SITE, "/x.sif", nodes=2).plan.note


def test_caches_on_the_node_are_seen_where_the_runtime_does_not_show_them_anyway() -> None:
    local = StorageSpec(local="$LOCAL")
    assert _sources("/x.sif", "apptainer", local) == ["/work/me", "${LOCAL}"]
    assert _sources("/x.sif", "apptainer", StorageSpec(local="/tmp")) == ["/work/me"]
    assert _sources("x/y:1", "podman-hpc", StorageSpec(local="/tmp")) == ["/work/me", "/tmp"]
    assert _sources("x/y:1", "shifter", local) == []


def _sources(image: str, runtime: str, storage: StorageSpec) -> list[str]:
    asked = ContainerRequest(image=image, cwd="/work/me")
    choice = choose_from(asked, ContainerSite(storage=storage), runtime=runtime)
    return [mount.source for mount in choice.plan.mounts]
