"""The number types of one client's pushes and pulls on the wire: float32, or 16 bits by choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.needed import conversion_kernels
from adamctl.model.layout import ParameterLayout
from adamctl.model.wire_types import WIRE_TYPES, WireType, not_known
from adamctl.net.handshake import SIXTEEN_BIT
from adamctl.roles.ps.client.push_set import PushSet
from adamctl.roles.ps.client.rounding import HERE_ELEMENTS_MAX, Rounder, Rounding, Rows, rows_of


def check_wire_types(push: str, pull: str) -> None:
    """Raises ConfigurationError if one of them is not a wire type."""
    for name, wire in (("wire_push", push), ("wire_pull", pull)):
        if wire not in WIRE_TYPES:
            raise ConfigurationError(f"{name}: {not_known(wire)}")


class WireChoice:
    """A client's choice of wire types, and the threads that convert. Used on the event loop only.

    Attributes:
        push, pull: number types of pushes and pulls on the wire.
    """

    def __init__(self, push: WireType, pull: WireType) -> None:
        """Raises ConfigurationError if there is no such type."""
        check_wire_types(push, pull)
        self.push, self.pull = push, pull
        self._rounder: Rounder | None = None
        self._widener: ThreadPoolExecutor | None = None
        self._sent: tuple[Collection[int], Mapping[int, Rows]] | None = None  # what a client sends is always the same

    async def begin(self, layout: ParameterLayout) -> None:
        """Prepares conversion; kernels load in a thread, so that the event loop is not blocked."""
        if self.push == self.pull == "float32" or self._widener is not None:
            return
        await asyncio.get_running_loop().run_in_executor(
            None, load_if_compiled, conversion_kernels((self.push, self.pull))
        )
        if self.push != "float32":
            self._rounder = Rounder(layout, self.push)
        self._widener = ThreadPoolExecutor(1, thread_name_prefix="widen")

    def check(self, node: str, features: Sequence[str]) -> None:
        """Raises ConfigurationError if a server does not support the chosen 16-bit types."""
        wanted = [wire for wire in (self.push, self.pull) if wire != "float32"]
        if wanted and SIXTEEN_BIT not in features:
            what = f"expected parameter server {node} to support {wanted[0]} on the wire; found an older version"
            raise ConfigurationError(f"{what}; update it, or leave wire_push and wire_pull at float32")

    def start(self, push: PushSet, only: Collection[int] | None = None) -> Rounding | None:
        """Starts to round a push; None if pushes are sent as float32. `only`: the shards that are sent; None: all."""
        if self._rounder is None:
            return None
        if only is None:
            return self._rounder.start(push)
        if self._sent is None or self._sent[0] is not only:
            self._sent = only, rows_of(push.layout, only)
        return self._rounder.start(push, self._sent[1])

    async def widen(self, elements: int, work: Callable[[], None]) -> None:
        """Runs `work`, which widens `elements`, in a thread if they are many; returns when it is done, even if
        cancelled meanwhile.
        """
        if self._widener is None or elements <= HERE_ELEMENTS_MAX:
            work()
            return
        working = asyncio.get_running_loop().run_in_executor(self._widener, work)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait({working})
            raise

    def close(self) -> None:
        """Ends the threads after their current work."""
        if self._rounder is not None:
            self._rounder.close()
        if self._widener is not None:
            self._widener.shutdown(wait=False)
