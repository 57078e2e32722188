#!/usr/bin/env python3
"""Writes docs/reference/verdicts-logs.md: how often explain-log is right, from one run over tests/log_corpus."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from log_corpus.score import PAGE, page_text  # noqa: E402

if __name__ == "__main__":
    PAGE.write_text(page_text())
