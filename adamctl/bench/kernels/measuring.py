"""How the kernel benchmark measures: threads that repeat one call, and the machine's limits to compare with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

Call = Callable[[], object]

PRODUCT_SIZES = (512, 1024)
STREAM_ELEMENTS = 1 << 24  # 64 MiB of float32: far larger than any cache


def calls_per_s(calls: Sequence[Call], seconds: float) -> float:
    """Returns calls per second of all threads together; each thread repeats one call for `seconds`."""
    if len(calls) == 1:
        return _repeat(calls[0], seconds)
    rates = [0.0] * len(calls)
    failures: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def work(index: int) -> None:
        try:
            start.wait()
            rates[index] = _repeat(calls[index], seconds)
        except BaseException as failure:
            failures.append(failure)
            start.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(rates)


def _repeat(call: Call, seconds: float) -> float:
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < seconds:
        call()
        done += 1
    return done / (time.perf_counter() - start)


class Limit:
    """A limit of this machine: the best rate of a few plain calls, made by as many threads as the kernels use."""

    def __init__(self, ways: Sequence[tuple[float, Callable[[], Call]]], threads: int) -> None:
        """`ways` are pairs: floating-point operations or bytes of a call, and a function that makes it for a thread."""
        self._ways = [(work, [make() for _ in range(threads)]) for work, make in ways]

    def measure(self, seconds: float) -> float:
        """Returns operations or bytes per second, the best of all ways."""
        with threadpool_limits(limits=1, user_api="blas"):
            return max(work * calls_per_s(calls, seconds) for work, calls in self._ways)


def product_limit(threads: int) -> Limit:
    """Returns the rate of float32 matrix products in numpy, one BLAS thread per thread, 2 operations per connection."""
    return Limit([(2.0 * size**3, partial(_product, size)) for size in PRODUCT_SIZES], threads)


def memory_limit(threads: int) -> Limit:
    """Returns the better rate of copying and adding in place, from memory to memory, counting every stream."""
    array = float(np.dtype(np.float32).itemsize * STREAM_ELEMENTS)
    return Limit([(2 * array, _copy), (3 * array, _add)], threads)


def reading_limit(threads: int) -> Limit:
    """Returns the rate of reading memory without writing: vector products in numpy."""
    array = float(np.dtype(np.float32).itemsize * STREAM_ELEMENTS)
    return Limit([(2 * array, _dot), (array, _largest)], threads)


def _product(size: int) -> Call:
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal((size, size), np.float32) for _ in range(2))
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out)


def _copy() -> Call:
    a, b = np.ones(STREAM_ELEMENTS, np.float32), np.zeros(STREAM_ELEMENTS, np.float32)
    return lambda: np.copyto(b, a)


def _dot() -> Call:
    a, b = (
        np.ones(STREAM_ELEMENTS, np.float32),
        np.ones(STREAM_ELEMENTS, np.float32),
    )  # zeros may not be backed by memory
    return lambda: np.dot(a, b)


def _largest() -> Call:
    a = np.ones(STREAM_ELEMENTS, np.float32)
    return lambda: np.max(a)


def _add() -> Call:
    a, b = np.ones(STREAM_ELEMENTS, np.float32), np.zeros(STREAM_ELEMENTS, np.float32)
    return lambda: np.add(b, a, out=b)
