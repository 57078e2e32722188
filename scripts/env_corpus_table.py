#!/usr/bin/env python3
"""Writes docs/reference/verdicts-environments.md: how often `env check` is right in tests/env_corpus."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from env_corpus.table import PAGE, page_text  # noqa: E402

if __name__ == "__main__":
    PAGE.write_text(page_text())
