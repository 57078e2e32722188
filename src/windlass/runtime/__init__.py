"""The names that a user's script may import: `init`, `Snapshot` and `step`.

Nothing here needs a launcher. The import loads only the standard library. torch is imported at the first call.
`windlass.init`, `windlass.Snapshot` and `windlass.step` are the same names, imported lazily.
"""

from __future__ import annotations

from windlass.runtime.codes import RESUME_ME, ResumeLater
from windlass.runtime.run import Run
from windlass.runtime.snapshot import Snapshot
from windlass.runtime.start import init
from windlass.runtime.step import step

__all__ = ["RESUME_ME", "ResumeLater", "Run", "Snapshot", "init", "step"]
