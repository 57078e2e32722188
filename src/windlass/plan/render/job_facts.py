"""What a rendered script needs and only the job knows. A value."""

from __future__ import annotations

import msgspec


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the job knows. None: the batch script exports it (WINDLASS_MASTER_ADDR and so on)."""

    run_dir: str
    run_id: str
    uid: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    job_file: str | None = None
    """Shell text that the batch script writes and every rank reads: what could not be known before. Not every launcher
    carries variables."""
    jit_folder: str | None = None
    """Name of the folder for JIT caches, where only the job's own shell can tell user and job."""
    attempt: int | None = None
    """Which start of the run this is, where somebody watches it and may start it again."""
    deadline_s: float | None = None
    """When the allocation ends, in seconds since 1970."""
    live: tuple[int, ...] = ()
    """Ranks on a terminal whose lines are seen while they grow, where the launcher hands on whole lines alone."""
    kept_caches: bool = True
    """Unpack the caches that an earlier job kept; windlass has checked who made them."""
    beats: str | None = None
    """Folder on each node for the ranks' signs of life, but for the node's number at its end."""
