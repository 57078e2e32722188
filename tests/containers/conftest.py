"""The image that tests of real runtimes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.rootfs import make_rootfs


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an unpacked image; tests do not write to it."""
    return make_rootfs(tmp_path_factory.mktemp("image") / "root")
