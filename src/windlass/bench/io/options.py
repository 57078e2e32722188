"""The options of `bench io`. Runs inside ranks: standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.bench.options import option
from windlass.bench.sizes import parse_size
from windlass.errors import UsageError, unknown_name

FORMATS = ("files", "tar", "squashfs")


@dataclass(frozen=True, kw_only=True, slots=True)
class IoOptions:
    """The samples, their formats and how to read them.

    A run keeps its samples in `folder`, below `path`.
    """

    path: str = option("", "a folder of the file system to measure", metavar="PATH", positional=True)
    samples: int = option(2000, "how many to read (default 2000)")
    sample_size: str = option("114660", "default: an ImageNet image, 114660", metavar="BYTES")
    workers: int = option(0, "reading threads of a rank (default: its cores, up to 8)")
    formats: str = option(",".join(FORMATS), f"of {', '.join(FORMATS)}", metavar="LIST")
    need: str | None = option(None, "samples/s that one device takes: a number, or a record of a run", metavar="RATE")

    def __post_init__(self) -> None:
        for form in self.formats.split(","):
            if form not in FORMATS:
                raise unknown_name("format", form, FORMATS)
        if self.samples < 1 or self.sample_bytes < 8 or self.workers < 0:
            raise UsageError(
                "--samples must be 1 or more, --sample-size 8 bytes or more, --workers 0 or more",
                hint="leave one out to have its default",
            )

    @property
    def sample_bytes(self) -> int:
        return parse_size(self.sample_size)
