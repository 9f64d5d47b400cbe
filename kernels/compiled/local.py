"""Windows of a locally connected layer, place by place, and pooling by the root of the sum of squares."""

from __future__ import annotations

import math
from typing import Any

import numba.core.cgutils
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN4, OUT4, f32, i64, kernel, readable, writable
from adamctl.kernels.compiled.vectors import LANES, address, intrinsic, load_vector, plus, store_vector

cgutils: Any = numba.core.cgutils
ELEMENT_BYTES = 4


@intrinsic
def copy_run(typing: Any, target: Any, target_at: Any, source: Any, source_at: Any, count: Any) -> Any:
    """target[target_at + i] = source[source_at + i], i < count, by the library's memory copy.

    A loop is compiled into blocks of 32 numbers and single ones; a window's runs are often shorter than a block.
    """
    size = types.intp

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_, target_at_, source_, source_at_, count_ = arguments
        to = address(context, builder, signature.args[0], target_, target_at_)
        cgutils.raw_memcpy(
            builder, to, address(context, builder, signature.args[2], source_, source_at_), count_, ELEMENT_BYTES
        )
        return context.get_dummy_value()

    return types.void(target, size, source, size, size), expand


@intrinsic
def add_run(typing: Any, target: Any, target_at: Any, source: Any, source_at: Any, count: Any) -> Any:
    """target[target_at + i] += source[source_at + i], i < count: vectors first, single numbers then."""
    size = types.intp

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_, target_at_, source_, source_at_, count_ = arguments
        lanes = ir.Constant(count_.type, LANES)
        vectors = builder.sdiv(count_, lanes)
        done = builder.mul(vectors, lanes)

        def addresses(index: Any) -> tuple[Any, Any]:
            to = address(context, builder, signature.args[0], target_, builder.add(target_at_, index))
            return to, address(context, builder, signature.args[2], source_, builder.add(source_at_, index))

        with cgutils.for_range(builder, vectors, intp=count_.type) as vector:
            to, at = addresses(builder.mul(vector.index, lanes))
            store_vector(builder, builder.fadd(load_vector(builder, to), load_vector(builder, at)), to)
        with cgutils.for_range(builder, builder.sub(count_, done), intp=count_.type) as single:
            to, at = addresses(plus(builder, done, single.index, ir.Constant(count_.type, 1)))
            builder.store(builder.fadd(builder.load(to), builder.load(at)), to)
        return context.get_dummy_value()

    return types.void(target, size, source, size, size), expand


@kernel((IN4, writable(f32, 3), i64, i64, i64, i64, i64, i64, i64, i64))
def unfold_places(
    images: Any, windows: Any, first: int, columns: int, kh: int, kw: int, sy: int, sx: int, top: int, left: int
) -> None:
    """windows[p, n, (dy, dx, c)] = the window of place first + p, counted row by row, of image n."""
    height, width, channels = images.shape[1:]
    run = kw * channels
    source, target = images.reshape(images.size), windows.reshape(windows.size)
    for p in range(windows.shape[0]):
        y, x = (first + p) // columns * sy - top, (first + p) % columns * sx - left
        start, stop = max(-x, 0), min(kw, width - x)
        for image in range(windows.shape[1]):
            place = (p * windows.shape[1] + image) * kh * run
            for dy in range(kh):
                inside = 0 <= y + dy < height
                if not inside or stop - start < kw:
                    target[place : place + run] = 0
                if inside:
                    pixel = ((image * height + y + dy) * width + x + start) * channels
                    copy_run(target, place + start * channels, source, pixel, (stop - start) * channels)
                place += run


@kernel((readable(f32, 3), OUT4, i64, i64, i64, i64, i64, i64, i64, i64))
def fold_places(
    windows: Any, images: Any, first: int, columns: int, kh: int, kw: int, sy: int, sx: int, top: int, left: int
) -> None:
    """The transpose of `unfold_places`, added to what is in `images`; these are cleared before place 0."""
    height, width, channels = images.shape[1:]
    run = kw * channels
    source, target = windows.reshape(windows.size), images.reshape(images.size)
    if first == 0:
        target[:] = 0
    for p in range(windows.shape[0]):
        y, x = (first + p) // columns * sy - top, (first + p) % columns * sx - left
        start, stop = max(-x, 0), min(kw, width - x)
        for image in range(windows.shape[1]):
            place = (p * windows.shape[1] + image) * kh * run
            for dy in range(kh):
                if 0 <= y + dy < height:
                    pixel = ((image * height + y + dy) * width + x + start) * channels
                    add_run(target, pixel, source, place + start * channels, (stop - start) * channels)
                place += run


@kernel((IN4, OUT4, i64, i64, i64, i64))
def l2pool_forward(images: Any, outputs: Any, kh: int, kw: int, sy: int, sx: int) -> None:
    """outputs = the root of the sum of squares of each window."""
    batch, rows, columns, channels = outputs.shape
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                total = outputs[image, y, x]
                total[:] = 0
                for number in range(kh * kw):
                    pixel = images[image, y * sy + number // kw, x * sx + number % kw]
                    for c in range(channels):
                        total[c] += pixel[c] * pixel[c]
                for c in range(channels):
                    total[c] = math.sqrt(total[c])


@kernel((IN4, IN4, IN4, writable(f32, 1), OUT4, i64, i64, i64, i64))
def l2pool_backward(
    images: Any, outputs: Any, errors: Any, share: Any, image_errors: Any, kh: int, kw: int, sy: int, sx: int
) -> None:
    """image_errors = sum over the windows of a pixel of error * pixel / output, 0 / 0 being 0; `share` is scratch."""
    batch, rows, columns, channels = outputs.shape
    zero = np.float32(0)
    image_errors[...] = 0
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                root, error = outputs[image, y, x], errors[image, y, x]
                for c in range(channels):
                    share[c] = zero if root[c] == zero else error[c] / root[c]
                for number in range(kh * kw):
                    pixel = images[image, y * sy + number // kw, x * sx + number % kw]
                    into = image_errors[image, y * sy + number // kw, x * sx + number % kw]
                    for c in range(channels):
                        into[c] += share[c] * pixel[c]
