"""A machine that lacks the site's network libraries is no node of the site. Decided on values, not on sentences."""

from __future__ import annotations

import pytest

from windlass.build.images.inject import Injection, is_elsewhere, require_host_libraries
from windlass.errors import MachineError


def _refused(*reasons: str, missing: tuple[str, ...]) -> Injection:
    return Injection(image="x.sif", strategy="refused", because="", refused=reasons, missing=missing)


def test_a_host_without_any_of_the_libraries_is_no_node_of_the_site() -> None:
    elsewhere = _refused("in other words", missing=("libfabric.so.1",))
    assert is_elsewhere(elsewhere)
    with pytest.raises(MachineError):
        require_host_libraries(elsewhere, "lumi")


def test_another_reason_for_a_refusal_says_that_it_is_a_node() -> None:
    other = _refused("the host has no libcxi.so.1", "libfabric.so.1 needs glibc 2.38", missing=("libcxi.so.1",))
    assert not is_elsewhere(other)
    require_host_libraries(other, "lumi")
