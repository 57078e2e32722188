"""Plans and records on disk: they come back as they were, and what cannot be read says why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.errors import ConfigError, VersionError, WindlassError
from windlass.model.condition import When
from windlass.model.origin import Argument, Origin
from windlass.model.plan import PLAN_VERSION, Binding, Plan, RankBinding, Setting, plan_from_json, plan_to_json
from windlass.model.record import RECORD_VERSION, RankFailure, RunRecord, record_from_json, record_to_json
from windlass.model.request import Request
from windlass.model.topology import Core, Topology


def make_plan(command: tuple[str, ...] = ("python", "train.py"), value: str | None = "1") -> Plan:
    site = Origin(scope="site", where="frontier.toml", checked="2025-01-02", grade="site")
    return Plan(
        version=PLAN_VERSION,
        name="train",
        site="frontier",
        nodes=2,
        ranks_per_node=1,
        world_size=2,
        scheduler="slurm",
        launcher="srun",
        request=Request(command=command, nodes=2, env=(("A", value or ""),)),
        command=command,
        launch=(Argument(words=("srun", "-N", "2"), because="two nodes", origin=site),),
        environment=(Setting(name="A", value=value, because="asked", origin=site, when=When(exists="/opt/x")),),
        binding=Binding(ranks=(RankBinding(local_rank=0, cpus=(1, 2)),), because="nearest cores"),
        topology=Topology(arch="x86_64", cores=(Core(cpus=(0,)), Core(cpus=(1,)), Core(cpus=(2,)))),
    )


def make_record() -> RunRecord:
    return RunRecord(
        version=RECORD_VERSION,
        windlass="0.1.0",
        name="train",
        site="workstation",
        nodes=1,
        ranks_per_node=2,
        hosts="localhost",
        outcome="failed",
        exit_code=3,
        started="2025-01-02T03:04:05Z",
        seconds=1.5,
        failure=RankFailure(rank=1, host="localhost", code=3, last_lines=("boom",)),
    )


# What the operating system gives us: any bytes but NUL, those that are not UTF-8 as lone surrogates.
_texts = st.binary(max_size=40).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
_words = st.lists(_texts | st.text(st.characters(exclude_categories=("Cs",))), min_size=1, max_size=5).map(tuple)


@given(_words, st.none() | _texts)
def test_a_plan_comes_back_as_the_same_value(command: tuple[str, ...], value: str | None) -> None:
    plan = make_plan(command, value)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_the_same_plan_is_the_same_bytes() -> None:
    assert plan_to_json(make_plan()) == plan_to_json(make_plan())


def test_a_plan_on_disk_is_readable_text() -> None:
    data = plan_to_json(make_plan())
    assert data.endswith(b"\n")
    assert len(data.splitlines()) > 20
    assert json.loads(data)["site"] == "frontier"


def test_a_record_comes_back_as_the_same_value() -> None:
    assert record_from_json(record_to_json(make_record())) == make_record()


@given(_texts)
def test_last_lines_of_a_rank_may_be_any_bytes(line: str) -> None:
    record = msgspec.structs.replace(make_record(), failure=RankFailure(rank=1, last_lines=(line,)))
    assert record_from_json(record_to_json(record)) == record


def test_a_torn_file_with_escapes_is_still_an_error() -> None:
    data = plan_to_json(make_plan(("x", os.fsdecode(b"\xff"))))
    assert b"\\udcff" in data
    with pytest.raises(ConfigError, match="not a plan"):
        plan_from_json(data[: len(data) - 3])


_READERS: list[tuple[Callable[..., object], bytes, int]] = [
    (plan_from_json, plan_to_json(make_plan()), PLAN_VERSION),
    (record_from_json, record_to_json(make_record()), RECORD_VERSION),
]


@each(("read", "data", "version"), _READERS)
def test_a_newer_version_is_refused_with_a_clear_word(read: Callable[..., object], data: bytes, version: int) -> None:
    fields = json.loads(data) | {"version": version + 1, "a_field_of_the_future": {}}
    with pytest.raises(VersionError, match="newer") as caught:
        read(json.dumps(fields).encode(), where="runs/x.json")
    assert "runs/x.json" in caught.value.message


@each(("read", "data", "version"), _READERS)
def test_a_file_torn_anywhere_is_an_error_that_names_it(read: Callable[..., object], data: bytes, version: int) -> None:
    for end in (*range(0, len(data) - 2, 17), len(data) - 2):
        with pytest.raises(ConfigError, match=r"runs/x\.json"):
            read(data[:end], where="runs/x.json")


@each(("read", "data", "version"), _READERS)
@each("other", [b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b'{"version": "x"}', b'{"version": null}'])
def test_what_is_no_such_file_at_all_is_an_error(
    read: Callable[..., object], data: bytes, version: int, other: bytes
) -> None:
    with pytest.raises(WindlassError, match=r"runs/x\.json"):
        read(other, where="runs/x.json")


def test_an_unknown_field_of_a_plan_is_an_error() -> None:
    fields = json.loads(plan_to_json(make_plan())) | {"launcherr": "srun"}
    with pytest.raises(ConfigError, match="launcherr"):
        plan_from_json(json.dumps(fields).encode())


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        make_plan().nodes = 3  # type: ignore[misc]
    assert msgspec.structs.replace(make_plan(), nodes=3).nodes == 3


@each(
    ("failure", "code"),
    [
        (RankFailure(rank=0, code=3), 3),
        (RankFailure(rank=0, signal=9), 137),
        (RankFailure(rank=0, code=0), 1),
        (RankFailure(rank=None), 1),
    ],
)
def test_a_failure_ends_with_the_code_a_shell_would_give(failure: RankFailure, code: int) -> None:
    assert failure.exit_code == code


@pytest.mark.parametrize("version", [1, 2])
def test_remarks_of_earlier_versions_are_read_as_findings(version: int) -> None:
    raw = json.loads(plan_to_json(make_plan()))
    over_tcp = "2 nodes would talk over TCP although there is a fabric: NCCL_NET=Socket"
    raw |= {
        "version": version,
        "remarks": [{"level": "note", "text": "a \udcff"}, {"level": "warning", "text": over_tcp}],
    }
    plan = plan_from_json(json.dumps(raw).encode())
    assert [(remark.kind, remark.severity) for remark in plan.remarks] == [
        ("remark", "note"),
        ("tcp-fallback", "warning"),
    ]
    assert plan.remarks[0].evidence == "a \udcff"
    raw["remarks"] = [{"level": "loud", "text": "x"}]
    with pytest.raises(ConfigError):
        plan_from_json(json.dumps(raw).encode())
