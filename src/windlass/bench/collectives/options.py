"""The options of `bench collectives`. Runs inside ranks: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.bench.options import option
from windlass.bench.sizes import parse_sizes
from windlass.errors import UsageError, unknown_name

OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
)
# The names in nccl-tests and in torch.
DTYPES = {
    "float": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "double": "float64",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
}
REDOPS = ("sum", "avg", "min", "max")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectivesOptions:
    """The collectives, their sizes and the iterations. Rejects invalid values before anything starts."""

    op: str = option("all_reduce", f"all, or of {', '.join(OPS)}", metavar="LIST")
    sizes: str = option("auto", "64M; 1K,1M; 1M:8G:2 (default on devices)", metavar="RANGE")
    dtype: str = option("float", ", ".join(DTYPES))
    redop: str = option("sum", ", ".join(REDOPS))
    root: int = 0
    iters: int = 20
    warmup: int = 5
    most_seconds: float = option(20.0, "fewer iterations of a size that takes longer")
    backend: str | None = option(None, "default: nccl (RCCL too), xccl or gloo, after the device")
    no_check: bool = option(False, "leave out the check of the results")
    device: str | None = None

    def __post_init__(self) -> None:
        parse_ops(self.op)
        if self.sizes != "auto":
            parse_sizes(self.sizes)
        if self.dtype not in DTYPES:
            raise unknown_name("type", self.dtype, DTYPES)
        if self.redop not in REDOPS:
            raise unknown_name("reduction", self.redop, REDOPS)
        if self.iters < 1 or self.warmup < 0 or self.root < 0 or self.most_seconds <= 0:
            raise UsageError(
                "--iters must be 1 or more, --warmup and --root 0 or more, --most-seconds positive",
                hint="leave an option out to use its default",
            )


def parse_ops(text: str) -> tuple[str, ...]:
    """Return the collectives of a list.

    `all` means all of them. The error for an unknown name suggests the nearest one.
    """
    if text == "all":
        return OPS
    spelled = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather", "bcast": "broadcast"}
    names = tuple(dict.fromkeys(spelled.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--op names no collective", hint=f"known: {', '.join(OPS)}")
    for name in names:
        if name not in OPS:
            raise unknown_name("collective", name, OPS)
    return names
