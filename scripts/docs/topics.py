"""The how-to pages by topic, for the navigation of the site."""

from __future__ import annotations

from markdown_links import DOCS

TOPICS: dict[str, tuple[str, ...]] = {
    "Set up": (
        "environment",
        "containers",
        "arguments",
        "several-programs",
        "ray",
        "my-cluster-is-not-in-the-list",
        "send-a-selftest",
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


def pages_by_topic() -> dict[str, list[str]]:
    """Names of the how-to pages by topic. A page that `TOPICS` does not name is in the last topic, "More"."""
    found = {page.stem for page in (DOCS / "howto").glob("*.md") if page.name != "README.md"}
    rest = found.difference(*TOPICS.values())
    topics = {topic: [page for page in pages if page in found] for topic, pages in TOPICS.items()}
    return topics | ({"More": sorted(rest)} if rest else {})
