"""What tests of examples share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for `--keep-caches`: DeepSpeed's extension, which takes minutes, is compiled once for several tests."""
    return str(Path(tmp_path_factory.mktemp("compiled")))
