"""The kernels of the norms by hand, in Triton, over matrices of pixels by channels. `norm` calls them.

R and B are the rows and channels a program takes at a time, `steps` how often it does so; `rows` counts the pixels.
Every program of a column of the grid has the same channels, so the vectors of the norm are loaded once per program.
"""

# Triton reads annotations as its own language and its names as kernel constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def sums(
    x, shift, total, square, rows, steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Per channel: the sum of x - shift, and of its square."""
    c = tl.program_id(1) * B + tl.arange(0, B)
    k = tl.load(shift + c)[None, :]
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    r = tl.program_id(0) * steps * R + tl.arange(0, R)
    for _ in range(steps):
        inside = (r < rows)[:, None]
        # Measured from the running mean, so that a large mean does not swallow a small variance.
        v = tl.load(x + r[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32) - k
        v = tl.where(inside, v, 0.0)
        first += v
        second += v * v
        r += R
    tl.atomic_add(total + c, tl.sum(first, 0))
    tl.atomic_add(square + c, tl.sum(second, 0))


@triton.jit
def apply(
    x, shortcut, y, shift, weight, bias, total, square, mean_out, var_out, rows, eps,
    steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * B + tl.arange(0, B)
    d = tl.load(total + c) / rows
    var = tl.maximum(tl.load(square + c) / rows - d * d, 0.0)
    mean = tl.load(shift + c) + d
    if tl.program_id(0) == 0:
        tl.store(mean_out + c, mean)
        tl.store(var_out + c, var)
    a = tl.load(weight + c) / tl.sqrt(var + eps)
    b = (tl.load(bias + c) - mean * a)[None, :]
    a = a[None, :]
    r = tl.program_id(0) * steps * R + tl.arange(0, R)
    for _ in range(steps):
        inside = (r < rows)[:, None]
        at = r[:, None] * C + c[None, :]
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * a + b
        if SHORTCUT:
            v += tl.load(shortcut + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            v = tl.maximum(v, 0.0)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)
        r += R


@triton.jit
def from_pool(dy, index, r, c, inside, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """The gradient that reaches pixels r through a 3×3 maximum of stride 2: of the at most four windows that hold a
    pixel, those that chose it."""
    image, ih, iw = r // (H * W), (r // W) % H, r % W
    g = tl.zeros([r.shape[0], c.shape[0]], tl.float32)
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            oh, ow = (ih + 1) // 2 - i, (iw + 1) // 2 - j
            kh, kw = ih + 1 - 2 * oh, iw + 1 - 2 * ow
            held = (kh <= 2) & (kw <= 2) & (oh >= 0) & (ow >= 0) & (oh < H // 2) & (ow < W // 2)
            mask = held[:, None] & inside
            at = ((image * (H // 2) + oh) * (W // 2) + ow)[:, None] * C + c[None, :]
            chosen = tl.load(index + at, mask=mask, other=255).to(tl.int32) == (kh * 3 + kw)[:, None]
            g += tl.where(chosen, tl.load(dy + at, mask=mask, other=0.0).to(tl.float32), 0.0)
    return g


@triton.jit
def apply_pool(
    x, y, index, shift, weight, bias, total, square, mean_out, var_out, rows, eps,
    steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """As apply with ReLU, and the 3×3 maximum of stride 2 after it; the normed image itself is never written."""
    c = tl.program_id(1) * B + tl.arange(0, B)
    d = tl.load(total + c) / rows
    var = tl.maximum(tl.load(square + c) / rows - d * d, 0.0)
    mean = tl.load(shift + c) + d
    if tl.program_id(0) == 0:
        tl.store(mean_out + c, mean)
        tl.store(var_out + c, var)
    a = tl.load(weight + c) / tl.sqrt(var + eps)
    b = (tl.load(bias + c) - mean * a)[None, :]
    a = a[None, :]
    q = tl.program_id(0) * steps * R + tl.arange(0, R)
    for _ in range(steps):
        inside = q < rows // 4
        image, oh, ow = q // (H * W // 4), (q // (W // 2)) % (H // 2), q % (W // 2)
        best = tl.full([R, B], -1.0, tl.float32)
        which = tl.zeros([R, B], tl.int32)
        for k in tl.static_range(9):
            ih, iw = 2 * oh - 1 + k // 3, 2 * ow - 1 + k % 3
            held = (inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W))[:, None]
            v = tl.load(x + ((image * H + ih) * W + iw)[:, None] * C + c[None, :], mask=held, other=0.0)
            v = tl.where(held, tl.maximum(v.to(tl.float32) * a + b, 0.0), -1.0)
            which = tl.where(v > best, k, which)
            best = tl.maximum(v, best)
        at = q[:, None] * C + c[None, :]
        tl.store(y + at, best.to(y.dtype.element_ty), mask=inside[:, None])
        tl.store(index + at, which.to(tl.uint8), mask=inside[:, None])
        q += R


@triton.jit
def back_sums(
    dy, dy2, x, y, g_out, weight, bias, mean_in, var_in, dbias, dweight, rows, eps,
    steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    SHORTCUT: tl.constexpr, RELU: tl.constexpr, TWO: tl.constexpr,
    POOL: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * B + tl.arange(0, B)
    mean = tl.load(mean_in + c)
    rstd = 1.0 / tl.sqrt(tl.load(var_in + c) + eps)
    a = tl.load(weight + c) * rstd
    b = (tl.load(bias + c) - mean * a)[None, :]
    a, mean, rstd = a[None, :], mean[None, :], rstd[None, :]
    first = tl.zeros([R, B], tl.float32)
    second = tl.zeros([R, B], tl.float32)
    r = tl.program_id(0) * steps * R + tl.arange(0, R)
    for _ in range(steps):
        inside = (r < rows)[:, None]
        at = r[:, None] * C + c[None, :]
        if POOL:
            g = from_pool(dy, dy2, r, c, inside, C, H, W)
        else:
            g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            g += tl.load(dy2 + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            if SHORTCUT:
                g = tl.where(tl.load(y + at, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
            else:
                g = tl.where(v * a + b > 0, g, 0.0)
        if SHORTCUT:
            tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask=inside)
        first += g
        second += g * ((v - mean) * rstd)
        r += R
    tl.atomic_add(dbias + c, tl.sum(first, 0))
    tl.atomic_add(dweight + c, tl.sum(second, 0))


@triton.jit
def back_input(
    dy, index, x, dx, weight, bias, mean_in, var_in, dbias, dweight, rows, eps,
    steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    MASK: tl.constexpr, POOL: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * B + tl.arange(0, B)
    mean = tl.load(mean_in + c)
    rstd = 1.0 / tl.sqrt(tl.load(var_in + c) + eps)
    a = tl.load(weight + c) * rstd
    b = (tl.load(bias + c) - mean * a)[None, :]
    # dx = a·(g - db/n - x̂·dw/n), with all that does not change along the rows taken together.
    slope = rstd * tl.load(dweight + c) / rows
    offset = (tl.load(dbias + c) / rows - mean * slope)[None, :]
    a, slope = a[None, :], slope[None, :]
    r = tl.program_id(0) * steps * R + tl.arange(0, R)
    for _ in range(steps):
        inside = (r < rows)[:, None]
        at = r[:, None] * C + c[None, :]
        if POOL:
            g = from_pool(dy, index, r, c, inside, C, H, W)
        else:
            g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if MASK:
            g = tl.where(v * a + b > 0, g, 0.0)
        tl.store(dx + at, (a * (g - offset - v * slope)).to(dx.dtype.element_ty), mask=inside)
        r += R
