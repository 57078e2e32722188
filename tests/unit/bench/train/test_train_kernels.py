"""The kernels by hand against torch: in Triton's interpreter, which needs no GPU, and compiled where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from looping import each
from requirements import require, require_torch

require_torch()
require("triton", importlib.util.find_spec("triton") is not None, "no triton to import")

import torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[4]

# The interpreter is chosen when Triton is imported, so each check is a process of its own.
_START = """
import sys
import torch
torch.set_default_device(sys.argv[1])
import torch.nn.functional as F
from fast_resnet import norm
from fast_llama import kernels
from fast_llama.pieces import _swiglu
torch.manual_seed(0)
def last(t):
    return t.contiguous(memory_format=torch.channels_last).requires_grad_()
def table(channels):
    t = norm.NormTable()
    t.add(64)
    n = t.add(channels)
    t.build()
    with torch.no_grad():
        t.weight.normal_(); t.bias.normal_(); t.running[0].normal_()
    return t, n
def vectors(t):
    learnt = [v.detach()[64:].clone().requires_grad_() for v in (t.weight, t.bias)]
    return learnt + [t.running[0, 64:].clone(), t.running[1, 64:].clone()]
def check(*pairs):
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
"""

_NORM = """
relu, joined = {relu}, {joined}
t, n = table(128)
w, b, mean, var = vectors(t)
x = last(torch.randn(3, 128, 5, 7) * 2 + 3)
s = last(torch.randn(3, 128, 5, 7)) if joined else None
d1, d2 = torch.randn(2, 3, 128, 5, 7)
t.begin(); y, y2 = n(x, s, relu); ((y * d1).sum() + (y2 * d2).sum()).backward(); t.end()
ours = [x.grad.clone()] + ([s.grad.clone()] if joined else [])
x.grad = None
r = F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5)
if joined:
    s.grad = None
    r = r + s
r = r.relu() if relu else r
(r * (d1 + d2)).sum().backward()
check((y, r), (ours[0], x.grad), (t.weight.grad[64:], w.grad), (t.bias.grad[64:], b.grad))
check((t.running[0, 64:], mean), (t.running[1, 64:], var))
if joined:
    check((ours[1], s.grad))
"""

_POOL = """
t, n = table(64)
w, b, mean, var = vectors(t)
x = last(torch.randn(2, 64, 8, 12) * 2 + 1)
d1, d2 = torch.randn(2, 2, 64, 4, 6)
t.begin(); y, y2 = n.pooled(x); ((y * d1).sum() + (y2 * d2).sum()).backward(); t.end()
dx = x.grad.clone(); x.grad = None
r = F.max_pool2d(F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5).relu(), 3, 2, 1)
(r * (d1 + d2)).sum().backward()
check((y, r), (dx, x.grad), (t.weight.grad[64:], w.grad), (t.bias.grad[64:], b.grad))
"""

_SWIGLU = """
x = torch.randn(6, 5, 64, requires_grad=True)
d = torch.randn(6, 5, 32)
y = kernels.swiglu_by_hand(x); y.backward(d)
dx = x.grad.clone(); x.grad = None
r = _swiglu(x); r.backward(d)
check((y, r), (dx, x.grad))
"""


Check = Callable[[str], None]


@pytest.fixture(params=["interpreted", "compiled"])
def check(request: pytest.FixtureRequest) -> Check:
    """Runs a program that compares kernels with torch."""
    interpreted = request.param == "interpreted"
    if not interpreted:
        require("gpu", torch.cuda.is_available(), "no GPU to compile the kernels for")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")))
    }
    env |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    where = "cpu" if interpreted else "cuda"

    def run(program: str) -> None:
        argv = [sys.executable, "-c", _START + program, where]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]

    return run


@each(("relu", "joined"), [(True, False), (False, False), (True, True)])
def test_norm_with_relu_and_shortcut_is_that_of_torch(check: Check, relu: bool, joined: bool) -> None:
    check(_NORM.format(relu=relu, joined=joined))


def test_norm_with_pool_is_that_of_torch(check: Check) -> None:
    check(_POOL)


def test_swiglu_is_that_of_torch(check: Check) -> None:
    check(_SWIGLU)
