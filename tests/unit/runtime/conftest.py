"""For tests that use the runtime in their own process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from windlass.runtime import codes


@pytest.fixture
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher's variables, and no handler of a former loop."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_JOB_END_TIME", codes.DEADLINE, codes.HEARTBEAT):
        monkeypatch.delenv(name, raising=False)
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    after = {s: signal.getsignal(s) for s in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    for number, handler in before.items():  # who has saved and leaves ignores what would kill it now
        assert after[number] in ({handler, signal.SIG_IGN} if handler is signal.SIG_DFL else {handler})
