"""What one client's pushes and pulls travel as: float32, or 16 bits by choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.needed import conversion_kernels
from adamctl.model.layout import ParameterLayout
from adamctl.model.wire_types import WIRE_TYPES, WireType, not_known
from adamctl.net.handshake import SIXTEEN_BIT
from adamctl.roles.ps.client.push_set import PushSet
from adamctl.roles.ps.client.rounding import HERE_ELEMENTS_MAX, Rounder, Rounding


def check_wire_types(push: str, pull: str) -> None:
    """Raises ConfigurationError if one of them is no type of the wire."""
    for name, wire in (("wire_push", push), ("wire_pull", pull)):
        if wire not in WIRE_TYPES:
            raise ConfigurationError(f"{name}: {not_known(wire)}")


class WireChoice:
    """A client's choice, and who carries it out. Used on the event loop only.

    Attributes:
        push, pull: what pushes and pulls travel as.
    """

    def __init__(self, push: WireType, pull: WireType) -> None:
        """Raises ConfigurationError: there is no such type."""
        check_wire_types(push, pull)
        self.push, self.pull = push, pull
        self._rounder: Rounder | None = None
        self._widener: ThreadPoolExecutor | None = None

    async def begin(self, layout: ParameterLayout) -> None:
        """Gets ready; kernels load in a thread, so that no push waits for that on the event loop."""
        if self.push == self.pull == "float32" or self._widener is not None:
            return
        await asyncio.get_running_loop().run_in_executor(
            None, load_if_compiled, conversion_kernels((self.push, self.pull))
        )
        if self.push != "float32":
            self._rounder = Rounder(layout, self.push)
        self._widener = ThreadPoolExecutor(1, thread_name_prefix="widen")

    def check(self, node: str, features: Sequence[str]) -> None:
        """Raises ConfigurationError if a server does not know the 16-bit types that we are to use."""
        wanted = [wire for wire in (self.push, self.pull) if wire != "float32"]
        if wanted and SIXTEEN_BIT not in features:
            what = f"expected parameter server {node} to know {wanted[0]} on the wire; found an older one"
            raise ConfigurationError(f"{what}; update it, or leave wire_push and wire_pull at float32")

    def start(self, push: PushSet) -> Rounding | None:
        """Begins to round a push, unless pushes travel as they are."""
        return None if self._rounder is None else self._rounder.start(push)

    async def widen(self, elements: int, work: Callable[[], None]) -> None:
        """Does `work`, which widens so many elements, in a thread where there are many; it is done when this returns,
        also if the caller was cancelled meanwhile.
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
        """Ends the threads after what they are at."""
        if self._rounder is not None:
            self._rounder.close()
        if self._widener is not None:
            self._widener.shutdown(wait=False)
