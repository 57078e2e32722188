"""Options that are declared once: the command line is made of them, and the ranks get the same value."""

from __future__ import annotations

import argparse
import json

import pytest

from looping import each
from windlass.bench.collectives.options import CollectivesOptions
from windlass.bench.ddp import DdpOptions
from windlass.bench.io.options import IoOptions
from windlass.bench.llm import LlmCaseOptions, usual_choices
from windlass.bench.matmul.options import MatmulOptions
from windlass.bench.options import add_options, asked, from_values, to_argument
from windlass.bench.train.options import LlmOptions, ResNetOptions
from windlass.errors import UsageError

KINDS = (CollectivesOptions, DdpOptions, IoOptions, LlmCaseOptions, MatmulOptions, ResNetOptions)


def _parsed(kind: type, *words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    return asked(parser.parse_args(words), kind)


@each("kind", KINDS)
def test_what_was_not_asked_keeps_the_default_of_the_class(kind: type) -> None:
    words = ("there",) if kind is IoOptions else ()
    assert kind(**_parsed(kind, *words)) == kind(**({"path": "there"} if words else {}))


@each("kind", KINDS)
def test_a_rank_gets_the_same_value(kind: type) -> None:
    assert from_values(kind, json.loads(to_argument(kind(), case="left out"))) == kind()


def test_numbers_and_switches_survive_the_way_to_a_rank() -> None:
    words = ("--no-compile", "--learning-rate", "1e-3", "--precision", "bf16")
    found = LlmOptions(**_parsed(LlmOptions, *words))  # type: ignore[arg-type]
    assert (found.compile, found.learning_rate, found.precision) == (False, 1e-3, "bf16")
    assert from_values(LlmOptions, json.loads(to_argument(found))) == found


def test_the_step_is_that_of_the_published_tables_in_the_precision_asked_for() -> None:
    published = DdpOptions().step("resnet50", parallel=True)
    assert (published.precision, published.tf32, published.parallel) == ("fp32", None, "ddp")
    changed = DdpOptions(precision="bf16", tf32=False, fp16_allreduce=True).step("resnet101", parallel=False)
    assert (changed.precision, changed.tf32, changed.parallel) == ("bf16", False, "none")
    assert not changed.fp16_allreduce, "nothing is sent"


@each(
    ("words", "ranks", "found"),
    [
        ({}, 1, ("none", 512)),
        ({}, 2, ("ddp", 512)),
        ({"model": "llama2-7b"}, 8, ("fsdp", 4096)),
        ({"model": "llama2-7b", "parallel": "ddp", "sequence": 128}, 8, ("ddp", 128)),
    ],
)
def test_ranks_share_a_model_in_the_usual_way(words: dict[str, object], ranks: int, found: tuple[str, int]) -> None:
    options = usual_choices(words, ranks)
    assert (options.parallel, options.sequence) == found


@each(
    ("kind", "values", "said"),
    [
        (DdpOptions, {"steps": 0}, "--steps"),
        (MatmulOptions, {"types": "bf16,bf17"}, "bf17"),
        (IoOptions, {"formats": "files,zip"}, "zip"),
        (IoOptions, {"sample_size": "4"}, "8 bytes or more"),
        (DdpOptions, {"model": "resnet50,resnet5"}, "resnet5"),
    ],
)
def test_what_cannot_be_is_refused_by_the_value(kind: type, values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind(**values)
