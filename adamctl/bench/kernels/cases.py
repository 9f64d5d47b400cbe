"""The cases of `bench kernels`: one kernel with one size, the work of a call, and the limit that bounds it."""

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
        work: floating-point operations of a call if products bound it, bytes read and written if memory does.
        bound: which of the two.
        make: returns the call for one thread, with its arrays allocated.
        peer: the peer's equivalent; None if it has none.
        reads: the bytes that are read, if reading alone may bound the call: a core writes back in parallel with its
            reads, so adding in place, with a third of the bytes written, moves more bytes than it could read.
        share: factor of the limit, 0.5 for an update that is a product and an addition.
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
        """The unit of this work's rate in field names: billions of operations, or of bytes, per second."""
        return "gflop_per_s" if self.bound == "product" else "gb_per_s"
