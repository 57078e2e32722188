"""Limits and defaults that the explanations state are those of the code."""

from __future__ import annotations

from markdown_links import DOCS
from windlass.node.cache import server
from windlass.node.cache.config import CHAIN_NODES, TREE_CHILDREN, NodeConfig
from windlass.node.wire import accept
from windlass.runtime.codes import RESUME_ME


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text().split())


def test_the_cache_has_the_defaults_that_its_page_states() -> None:
    text, config = page("explanation/cache.md"), NodeConfig
    assert f"chunks of {config.chunk_bytes >> 10} KiB" in text
    assert f"`budget_bytes` ({config.budget_bytes >> 30} GiB)" in text
    assert f"a k-ary tree ({TREE_CHILDREN} children a node" in text
    assert f"up to {CHAIN_NODES} nodes are a chain" in text
    assert f"`peer_timeout_s` ({config.peer_timeout_s:g} s)" in text
    assert f"`give_up_s` ({config.give_up_s:g} s)" in text
    assert f"at most {accept.MAX_UNPROVEN:,} connections" in text
    assert f"limited to {server.MAX_CONNECTIONS}" in text


def test_the_exit_code_that_means_resume_me_is_the_one_that_pages_state() -> None:
    for name in ("howto/keep-a-run-alive.md", "howto/snapshots.md", "reference/runtime.md"):
        assert f"xit code {RESUME_ME}" in page(name), name
