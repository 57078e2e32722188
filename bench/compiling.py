"""torch.compile for the tuned steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any], on: bool, **options: Any) -> Callable[..., Any]:
    """The function through torch.compile with fixed shapes, or as it is."""
    if not on:
        return function
    return torch.compile(function, dynamic=False, **options)  # type: ignore[no-any-return]
