"""Binds: the user's words, what wins, what is followed, what is left out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from looping import each
from windlass.backends.containers import binds, get_runtime
from windlass.backends.containers.binds import combine, needed_path, parse_bind, settle
from windlass.errors import MachineError, UsageError
from windlass.model.origin import Origin
from windlass.model.plan import Mount
from windlass.plan.render.rank_lines import wrap_lines

SITE = Origin(scope="site", where="lumi")


def _mount(source: str, target: str | None = None, **fields: object) -> Mount:
    base: dict[str, object] = {"because": "test", "origin": SITE}
    return Mount(source=source, target=target or source, **{**base, **fields})  # type: ignore[arg-type]


@each(
    ("text", "source", "target", "read_only"),
    [
        ("/data", "/data", "/data", False),
        ("/data/:/inside//x", "/data", "/inside/x", False),
        ("/data:/d:ro", "/data", "/d", True),
        ("/data:/d:rw", "/data", "/d", False),
        (".:/workdir", "/work/me", "/workdir", False),
        ("sub dir", "/work/me/sub dir", "/work/me/sub dir", False),
        ("${SCRATCH}/x", "${SCRATCH}/x", "${SCRATCH}/x", False),
        ("~/x:/x", "${HOME}/x", "/x", False),
        ("/a/../b", "/a/../b", "/a/../b", False),
    ],
)
def test_a_bind_is_read_as_source_target_and_mode(text: str, source: str, target: str, read_only: bool) -> None:
    mount = parse_bind(text, "/work/me")
    assert (mount.source, mount.target, mount.read_only) == (source, target, read_only)


@each("text", ["", ":/x", "/x:", "/a:/b:ro:z", "/a:/b:exec", "/a:b"])
def test_a_malformed_bind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--bind"):
        parse_bind(text, "/work/me")


def test_the_users_bind_wins_over_the_sites_and_a_note_says_so() -> None:
    mounts, notes = combine((_mount("/opt/cray"), parse_bind("/my/cray:/opt/cray", "/")), {})
    assert [(m.source, m.target) for m in mounts] == [("/my/cray", "/opt/cray")]
    assert len(notes) == 1
    assert "/my/cray is there" in notes[0]


def test_two_of_the_users_binds_to_one_place_are_an_error() -> None:
    with pytest.raises(UsageError, match="puts both /a and /b at /x"):
        combine((parse_bind("/a:/x", "/"), parse_bind("/b:/x", "/")), {})


def test_the_same_bind_twice_is_one_and_the_user_decides_about_writing() -> None:
    mounts, notes = combine((_mount("/data", optional=True), parse_bind("/data:/data:ro", "/")), {})
    assert [(m.source, m.read_only, m.optional) for m in mounts] == [("/data", True, False)]
    assert notes == ()


def test_a_folder_that_is_seen_through_a_larger_bind_needs_none() -> None:
    mounts, _ = combine((_mount("/pfs"), needed_path("/pfs/p/me", "the working folder")), {})
    assert [m.source for m in mounts] == ["/pfs"]


def test_a_folder_below_a_read_only_or_an_optional_bind_still_gets_its_own() -> None:
    work = needed_path("/pfs/p/me", "the working folder")
    for weak in (_mount("/pfs", read_only=True), _mount("/pfs", optional=True)):
        mounts, _ = combine((weak, work), {})
        assert [m.source for m in mounts] == ["/pfs", "/pfs/p/me"]


def test_a_bind_to_another_place_does_not_cover_the_folder() -> None:
    mounts, _ = combine((_mount("/other", "/pfs"), needed_path("/pfs/p/me", "the working folder")), {})
    assert [m.source for m in mounts] == ["/other", "/pfs/p/me"]


def test_parents_are_mounted_before_children() -> None:
    mounts, _ = combine((_mount("/x/cache", "/data/cache"), _mount("/y", "/data"), _mount("/z", "/")), {})
    assert [m.target for m in mounts] == ["/", "/data", "/data/cache"]


def test_real_links_are_followed_where_asked(tmp_path: Path) -> None:
    (tmp_path / "pfs/p").mkdir(parents=True)
    (tmp_path / "scratch").symlink_to(tmp_path / "pfs")
    path = str(tmp_path / "scratch/p")
    resolve = {path: str(tmp_path / "pfs/p")}
    mounts, _ = combine((needed_path(path, "the working folder"), _mount("/no")), {}, resolve)
    assert [m.source for m in mounts] == [path, "/no", str(tmp_path / "pfs/p")]
    assert "is really" in mounts[2].because


def test_a_missing_path_of_the_user_is_a_usage_error_and_one_of_the_site_a_fault_of_the_machine() -> None:
    with pytest.raises(UsageError, match="cannot bind /gone"):
        settle((parse_bind("/gone", "/"),), {}, frozenset())
    with pytest.raises(MachineError, match=r"cannot bind /opt/cray.*lumi") as caught:
        settle((_mount("/opt/cray"),), {}, frozenset())
    assert "--bind=-/opt/cray" in (caught.value.hint or "")


def test_optional_binds_are_left_out_where_the_path_or_its_variable_is_missing() -> None:
    mounts = (_mount("/a", optional=True), _mount("${X}/b", optional=True), _mount("${Y}/c"))
    assert [m.source for m in settle(mounts, {"Y": "/y"}, {"/y/c"})] == ["${Y}/c"]


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(MachineError, match=r"\$\{SCRATCH\}/x: a variable in it is not set"):
        settle((_mount("${SCRATCH}/x"),), {}, frozenset())


def test_a_default_bind_can_be_removed_and_a_wrong_name_lists_them() -> None:
    mounts = (_mount("/opt/cray"), _mount("/pfs"))
    assert [m.source for m in binds.without(mounts, "/opt/cray/")] == ["/pfs"]
    with pytest.raises(UsageError) as caught:
        binds.without(mounts, "/opt")
    assert "/opt/cray, /pfs" in (caught.value.hint or "")


@each(
    ("runtime", "path"),
    [
        ("apptainer", "/a,b"),
        ("apptainer", "/a^b"),
        ("apptainer", '/a"b'),
        ("apptainer", "/a\\b"),
        ("apptainer", "/a\nb"),
        ("apptainer", "/a "),
        ("singularity", "/a:b"),
        ("podman-hpc", "/a:b"),
        ("shifter", "/a;b"),
        ("shifter", "/etc/x"),
        ("shifter", "/opt"),
        ("edf", "/a b"),
        ("edf", "/a,b"),
        ("charliecloud", "/a:b"),
    ],
)
def test_what_a_bind_syntax_cannot_express_is_refused(runtime: str, path: str) -> None:
    assert get_runtime(runtime).check_mount(_mount(path))


@each(
    ("runtime", "path"),
    [
        ("apptainer", "/it's a $HOME `x` ünï;&|#%"),
        ("podman-hpc", '/a,b "c" \n$'),
        ("shifter", "/a,b 'c'"),
        ("shifter", "/var/tmp"),
        ("edf", "/a'b$(x)"),
        ("charliecloud", "/a,b\n'c\""),
    ],
)
def test_other_hostile_paths_are_fine(runtime: str, path: str) -> None:
    assert get_runtime(runtime).check_mount(_mount(path)) is None


def test_charliecloud_refuses_a_read_only_bind_that_the_user_asked_for() -> None:
    assert "read-only" in (get_runtime("charliecloud").check_mount(parse_bind("/a:/b:ro", "/")) or "")


def test_a_bind_with_versions_in_its_path_takes_the_newest_and_says_where_there_is_none(tmp_path: Path) -> None:
    for version in ("1.9.0", "1.22.0", "1.15.2.0"):
        (tmp_path / version / "lib64").mkdir(parents=True)
    mount = Mount(source=f"{tmp_path}/*/lib64", target="/host/lib", because="libfabric is there", optional=True)
    gone = Mount(source=f"{tmp_path}/none*/lib", target="/host/usr", because="it is needed", optional=True)
    lines = wrap_lines(
        tuple(binds.bind_argument(one, ("--bind", f"{one.source}:{one.target}")) for one in (mount, gone))
    )
    text = "\n".join(("w_local_rank=0 w_host=n1", "set -- cmd", *lines, 'printf "%s\\n" "$@"'))
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["--bind", f"{tmp_path}/1.22.0/lib64:/host/lib", "cmd"]
    assert done.stderr == f"windlass: n1 has no {tmp_path}/none*/lib: it is needed\n"
