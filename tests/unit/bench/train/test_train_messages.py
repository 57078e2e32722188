"""Records and the command line of the training step."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import pytest

from looping import each
from requirements import require_torch

require_torch()

from step_profile import busy_us, kind_of  # noqa: E402
from train_step import run, without_json  # noqa: E402
from unit.bench.train.training import short_run  # noqa: E402
from windlass.bench.train.messages import check_loss, train_message  # noqa: E402


def test_a_message_has_samples_formulas_and_the_losses() -> None:
    result = short_run(steps=6)
    message = train_message(result)
    assert len(message["samples"]["step_s"]) == 6
    assert len(message["losses"]) == len(message["gradient_norms"]) == 6
    figures = message["figures"]
    assert figures["tflops_6n"]["formula"] == "6*N*tokens"
    expected = 6 * result.parameters * 128 / statistics.median(result.step_s) / 1e12
    assert figures["tflops_6n"]["value"] == pytest.approx(expected)
    assert figures["tflops_6n"]["value"] < figures["tflops_causal"]["value"] < figures["tflops_palm"]["value"]
    assert json.loads(json.dumps(message)) == message


@each(
    ("losses", "said"),
    [
        ((3.0, float("nan"), 2.0), "not finite"),
        ((3.0, float("inf"), 2.0), "not finite"),
        ((1.0, 1.0, 1.0, 2.0, 2.0, 2.0), "does not fall"),
    ],
)
def test_a_bad_loss_is_called_bad(losses: tuple[float, ...], said: str) -> None:
    assert said in check_loss(losses)[0]


def test_a_falling_loss_is_fine_and_a_short_one_is_not_judged() -> None:
    assert not check_loss((3.0, 2.9, 2.8, 2.0, 1.9, 1.8))
    assert not check_loss((1.0, 2.0))


def _llm(*more: str) -> list[str]:
    return ["llm", "--model", "tiny", "--device", "cpu", "--sequence", "32", "--steps", "6", "--warmup", "0", *more]


def test_the_command_writes_a_record_and_prints_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert run([*_llm("--learning-rate", "1e-2"), "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["options"]["learning_rate"] == 1e-2
    assert str(tmp_path) not in out.read_text()
    printed = capsys.readouterr().out
    assert "tokens/s" in printed
    assert "[6*N*tokens]" in printed


def test_a_run_that_does_not_train_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_llm("--learning-rate=-1e-2")) == 1
    assert "the loss does not fall" in capsys.readouterr().err


def test_an_unknown_model_ends_with_a_hint_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["llm", "--model", "lama2-7b"]) == 2
    err = capsys.readouterr().err
    assert "unknown model 'lama2-7b'" in err
    assert "did you mean 'llama2-7b'" in err


@each("words", [("a", "--json", "f", "b"), ("a", "--json=f", "b"), ("a", "b", "--json")])
def test_the_place_of_the_record_is_not_part_of_its_command(words: tuple[str, ...]) -> None:
    assert without_json(words) == ("a", "b")


@each(
    ("kernel", "kind"),
    [
        ("nvjet_sm90_tss_320x128_64x3_1x2_h_badd_coopB_NTT", "product"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)", "attention"),
        ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x128x64", "convolution"),
        ("triton_poi_fused_add_copy_copy__div_lerp_mul_rsub_sqrt_sub_0", "optimizer"),
        ("triton_red_fused_abs_amax_0", "compiled"),
        ("_swiglu_backward", "by hand"),
        ("back_sums", "by hand"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "product"),
        ("Memset (Device)", "copy"),
        ("something_new", "other"),
    ],
)
def test_kernels_of_real_traces_are_sorted(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_overlapping_kernels_count_once() -> None:
    assert busy_us([(0, 10), (5, 12), (20, 30), (21, 22)]) == 22


def test_ctrl_c_keeps_the_steps_that_were_measured(tmp_path: Path) -> None:
    import os
    import signal
    import subprocess
    import sys

    source = Path(__file__).resolve().parents[4]
    out = tmp_path / "r.json"
    argv = [
        sys.executable,
        str(source / "bench" / "train_step.py"),
        *_llm("--steps", "1000000"),
        "--any-loss",
        "--json",
        str(out),
    ]
    env = os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 3/"):
                break
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    record = json.loads(out.read_text())
    assert 3 <= len(record["rows"][0]["samples"]["step_s"]) < 1_000_000


def test_a_model_larger_than_the_device_is_refused_before_it_is_made() -> None:
    import dataclasses

    from windlass.bench.train.device import find_device
    from windlass.bench.train.loop import check_memory
    from windlass.bench.train.options import LlmOptions
    from windlass.errors import MachineError

    small = dataclasses.replace(find_device("cpu"), memory_bytes=100 * 2**30, name="small card")
    asked = LlmOptions(model="llama2-7b", precision="bf16")
    with pytest.raises(MachineError, match="llama2-7b needs 113 GiB for its state on each device, small card has 100"):
        check_memory(asked, small, 1)
    check_memory(dataclasses.replace(asked, parallel="fsdp"), small, 2)


def test_out_of_memory_says_what_to_change() -> None:
    import torch

    from windlass.bench.train.device import find_device
    from windlass.bench.train.interruption import out_of_memory_explained
    from windlass.bench.train.loop import smaller
    from windlass.bench.train.options import LlmOptions
    from windlass.errors import MachineError

    with (
        pytest.raises(MachineError, match="cpu ran out of memory") as caught,
        out_of_memory_explained(find_device("cpu"), smaller(LlmOptions(micro_batch=2))),
    ):
        raise torch.OutOfMemoryError("no room")
    assert caught.value.hint == "try a smaller --micro-batch, --checkpointing selective or full, or --parallel fsdp"
    tried = smaller(LlmOptions(checkpointing="full", parallel="fsdp"))
    assert tried == "a shorter --sequence, or more ranks", "nothing that was done already"


def test_what_was_measured_is_told_after_a_second_and_then_ever_less_often() -> None:
    from windlass.bench.train.interruption import MessagePace

    now = [0.0]
    pace = MessagePace(lambda: now[0])
    told = []
    for tick in range(1, 2_001):
        now[0] = tick * 0.1
        told += [now[0]] if pace.due() else []
    assert told[:3] == pytest.approx([1.0, 2.0, 3.0])
    assert len(told) < 50
    assert all(after - before <= 0.12 * after + 1.1 for before, after in itertools.pairwise(told))
