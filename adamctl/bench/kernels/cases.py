"""What `bench kernels` measures: one kernel on one size, how much work a call is, and which limit bounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from adamctl.bench.kernels.measuring import Call
from adamctl.kernels.backend import Backend

Bound = Literal["product", "memory"]


@dataclass(frozen=True)
class Case:
    """One line of the benchmark.

    Attributes:
        name: the layer or rule, and which of its calls.
        group: `layer`, `rule`, `factors`, `vector` or `convert`.
        work: floating-point operations of a call where products bound it, bytes read and written where memory does.
        bound: which of the two.
        make: returns the call for one thread, its arrays allocated.
        peer: what the peer is asked to do instead; None where it has nothing like it.
        reads: the part of the bytes that is read, where that is so much that reading alone may bound it: a core writes
            back beside its reads, so adding in place, a third of it writes, moves more bytes than it could read.
        share: what the limit is multiplied with, 0.5 for an update that is a product and an addition.
    """

    name: str
    group: str
    work: float
    bound: Bound
    make: Callable[[Backend], Call]
    peer: dict[str, Any] | None = None
    reads: float | None = None
    share: float = 1.0
    backends: tuple[Backend, ...] = field(default=("numpy", "numexpr", "numba"))

    @property
    def unit(self) -> str:
        """How a rate of this work is called in field names: billions of operations, or of bytes, per second."""
        return "gflop_per_s" if self.bound == "product" else "gb_per_s"
