"""The how-to pages by topic, for the navigation of the site."""

from __future__ import annotations

from collections import Counter

from markdown_links import DOCS

TOPICS: dict[str, tuple[str, ...]] = {
    "Set up": (
        "environment",
        "containers",
        "arguments",
        "my-cluster-is-not-in-the-list",
        "no-internet-on-compute-nodes",
    ),
    "Failures": ("nccl-hangs", "ranks-do-not-find-each-other", "doctor", "keep-a-run-alive", "snapshots"),
    "Speed": (
        "why-is-it-slow",
        "what-is-my-job-doing",
        "data-loading-is-slow",
        "which-gpu-is-near-which-core",
        "profile",
    ),
    "Start-up and data": ("cache", "stage-data-to-tmp", "caches-fill-my-home"),
    "Measure": ("is-this-normal", "tune"),
}


def pages_without_one_topic() -> list[str]:
    """Names of how-to pages that have no topic or several, and of pages in `TOPICS` that do not exist."""
    named = Counter(page for pages in TOPICS.values() for page in pages)
    found = {page.stem for page in (DOCS / "howto").glob("*.md") if page.name != "README.md"}
    return sorted(found.symmetric_difference(named) | {page for page, count in named.items() if count > 1})
