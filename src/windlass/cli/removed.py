"""Commands and options of earlier versions that no longer exist, each with its replacement."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.errors import UsageError

_REPORT = "use windlass bench report RECORD --html FILE"
_PUSH = "in a checkout of windlass use python bench/push.py SIZE --link RATE"
_SIMULATE = "in a checkout of windlass use python bench/simulate_start.py --from RECORD"
_STEP = "in a checkout of windlass use python bench/train_step.py"
_ALWAYS = "leave it out: the step always uses the faster choice"
_CURVES = "in a checkout of windlass use python bench/start_curves.py --record FILE"
_KNOWN = "write a record with it first: windlass bench report FILE --op OP --ranks N --output RECORD.json"
# By command (empty: all): a sub-command, or an option (after "SUB "), and what to do instead.
_REMOVED = {
    "": {
        "--site-file": "use --site FILE",
        "--unset": "use --env ~NAME",
        "--env-append": "use --env NAME+=FOLDER",
        "--no-modules": "use --module none",
        "--cache-placement": "use --cache-set placement=partition",
        "--cache-memory": "use --cache-set memory=SIZE",
        "--cache-readers": "use --cache-set readers=N",
        "--cache-store": "use --cache-set store=FOLDER",
        "--cache-allow-other": "use --cache-set allow-other=on",
        "--no-cache-trace": "use --cache-set trace=off",
        "--profile-ranks": "use --profile TOOL:RANKS",
        "--profile-steps": "use --profile TOOL:RANKS:STEPS",
        "--out": "use --output FILE",
    },
    "bench": {
        "start --curves": _CURVES,
        "start --page": _CURVES,
        "start --plot": _CURVES,
        "start --latencies": _CURVES,
        "start --rates": _CURVES,
        "start --bandwidths": _CURVES,
        "start --within": _CURVES,
        "start --repeat": "use --repeats K",
        "start --warm-up": "use --warmup K",
        "start --record": "use --output FILE",
        "compare --op": _KNOWN,
        "compare --ranks": _KNOWN,
        "compare --nodes": _KNOWN,
        "compare --device-name": _KNOWN,
        "reference --op": _KNOWN,
        "reference --ranks": _KNOWN,
        "reference --nodes": _KNOWN,
        "synthetic": "use windlass bench ddp --batch 96 --fp16-allreduce",
        "ddp --fast": f"{_STEP} resnet --model resnet50",
        "llm --graphs": "leave it out: a graph of the step gained 0.3 %",
        "llm --no-graphs": "leave it out: the step has no graphs",
        "llm --tokens-file": "leave it out: the speed does not depend on the tokens",
        "llm --fuse-accumulation": _ALWAYS,
        "llm --no-fuse-accumulation": _ALWAYS,
        "llm --fp8-fast-accumulation": _ALWAYS,
        "llm --weight-decay": "leave it out: the weight decay is 0.1",
        "llm --ceiling-size": "leave it out: the size depends on the device",
        "llm --seed": "leave it out: the seed is 1234",
        "llm --clip": "leave it out: gradients are clipped at 1.0",
        "start --push": _PUSH,
        "start --link": _PUSH,
        "start --simulate": _SIMULATE,
        "start --from": _SIMULATE,
        "collectives --html": _REPORT,
        "matmul --html": _REPORT,
        "ddp --html": _REPORT,
        "llm --html": _REPORT,
        "io --html": _REPORT,
        "scale --html": _REPORT,
        "compare --html": _REPORT,
        "reference --html": _REPORT,
    },
    "image": {"plan --site": "use windlass image check IMAGE --site NAME; the recipe is the same for all sites"},
    "bugreport": {"--no-logs": "use --without logs", "--no-doctor": "use --without doctor"},
    "init": {"--adopt": "use windlass sites adopt NAME"},
    "tune": {"--trial-timeout": "use --timeout S"},
    "watch": {"--prometheus-port": "use --prometheus PORT"},
    "plan": {"--no-script": "leave it out: `plan` prints the rank script only with --script"},
}


def refuse_removed(command: str, words: Sequence[str]) -> None:
    """Raise `UsageError` with the replacement where a word names something that was removed from `command`, which is a
    command (`plan`) or one with its sub-command (`bench ddp`)."""
    name, _, sub = command.partition(" ")
    for word in words:
        option = word.partition("=")[0]
        instead = _REMOVED.get(name, {}).get(f"{sub} {option}".strip()) or _REMOVED[""].get(option)
        if instead is not None:
            raise UsageError(f"windlass {command} {option} was removed", hint=instead)
