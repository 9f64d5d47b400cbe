"""Rounds a client's pushes to 16 bits with error feedback, while the part already rounded is being sent.

Gradients and deltas are rounded with the residual of this client's last push of the same tensor and kind
(`adamctl.kernels.numeric.feedback`), so over many pushes the servers get the sum of the float32 values to within one
rounding. Factors are rounded without feedback: the error of a product cannot be put into the next one's factors. A push
is rounded once, in the order of `start`; a resend sends the same bytes. Residuals are lost when the client ends.

A partition sends some rows of a tensor alone. Nothing else of it is rounded, or even touched: the rest of its vectors
takes no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.numeric.convert import NARROW, Narrow, narrowed
from adamctl.kernels.numeric.feedback import round_with_feedback
from adamctl.kernels.operation import Array
from adamctl.model.layout import ParameterLayout
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WireType, of_factors
from adamctl.roles.ps.client.envelope import Envelope
from adamctl.roles.ps.client.push_set import PushSet, TensorUpdate
from adamctl.wire.constants import BODY_BYTES_MAX, UpdateKind

HERE_ELEMENTS_MAX = 1 << 17  # takes less time than waking a thread and being woken by it
PIECE_ELEMENTS = 1 << 19  # rounded at a time; waiters are woken after each
FACTOR_BYTES_MAX = BODY_BYTES_MAX // 2  # larger ones may have to be multiplied out, and are then sent as float32

Piece = Callable[[], None]
Rows = tuple[int, int]
"""First row, and the one after the last."""


class Rounding:
    """One push that is being rounded.

    Attributes:
        push: the same push in 16 bits; an envelope's arrays are valid once `until` has returned for it.
    """

    def __init__(
        self, push: PushSet, buffer: NDArray[np.uint16], given_back: Callable[[NDArray[np.uint16]], None]
    ) -> None:
        self.push, self.buffer = push, buffer
        self._given_back = given_back
        self.pieces: list[Piece] = []
        self.done = 0
        self._failure: BaseException | None = None
        self._first: dict[int, tuple[int, int]] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, tensor: int, pieces: list[Piece], start: int = 0) -> None:
        """Adds the work of one tensor: pieces of PIECE_ELEMENTS in order from element `start`, or one for factors."""
        self._first[tensor] = len(self.pieces), start
        self.pieces.extend(pieces)

    async def until(self, envelope: Envelope) -> None:
        """Returns when everything an envelope sends is rounded."""
        needed = max((self._needed(s.tensor, s.row_stop, s.kind) for s in envelope.sources), default=0)
        if self.done < needed:
            if self._failure is not None:
                raise self._failure
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((needed, waiting))
            await waiting

    def give_back(self) -> None:
        """Returns the buffer: the push is done, so nothing of it will be sent again."""
        self._given_back(self.buffer)

    def _needed(self, tensor: int, row_stop: int, kind: int) -> int:
        """Returns how many pieces must be done for the rows of a tensor before `row_stop`."""
        if tensor not in self._first:  # not rounded
            return 0
        first, start = self._first[tensor]
        if kind == UpdateKind.FACTORS:
            return first + 1
        elements = row_stop * self.push.layout.tensors[tensor].row_size - start
        return first - (-elements // PIECE_ELEMENTS)

    def advance(self, done: int, failure: BaseException | None = None) -> None:
        """Notes that `done` pieces are finished; called on the event loop."""
        self.done, self._failure = done, failure
        still: list[tuple[int, asyncio.Future[None]]] = []
        for needed, waiting in self._waiting:
            if waiting.done():
                continue
            if failure is not None:
                waiting.set_exception(failure)
            elif needed <= done:
                waiting.set_result(None)
            else:
                still.append((needed, waiting))
        self._waiting = still


class Rounder:
    """Rounds all pushes of one client. Used on the event loop only; the work itself runs in a thread of its own.

    There are as many buffers as pushes in flight at once; they are reused.
    """

    def __init__(self, layout: ParameterLayout, wire: WireType) -> None:
        self.wire = wire
        self._layout = layout
        self._residuals: dict[tuple[UpdateKind, int], Array] = {}
        self._free: list[NDArray[np.uint16]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="round")
        self._under_way = 0

    def start(self, push: PushSet, rows: Mapping[int, Rows] | None = None) -> Rounding:
        """Starts to round a push, after those started earlier; its arrays are borrowed until it is done.

        `rows`: of each tensor, those that are sent, of others none; None: all.
        """
        rounding = Rounding(replace(push, updates=dict(push.updates)), self._buffer(_elements(push)), self._free.append)
        start = 0
        for tensor, update in push.updates.items():
            described = self._layout.tensors[tensor]
            sent = (0, described.shape[0]) if rows is None else rows.get(tensor, (0, 0))
            if update.activations is None:
                stop = start + update.values.size
                out = rounding.buffer[start:stop].view(NARROW[self.wire])
                elements = slice(*(row * described.row_size for row in sent))
                rounding.add(tensor, self._with_feedback(update, tensor, out, elements), elements.start)
                rounding.push.updates[tensor] = TensorUpdate(update.kind, out)
            elif _rounds_factors(update):
                stop = start + update.values.size + update.activations.size
                rounded, piece = _factors(
                    update, rounding.buffer[start:stop].view(NARROW[of_factors(self.wire)]), slice(*sent)
                )
                rounding.add(tensor, [piece])
                rounding.push.updates[tensor] = rounded
            else:
                stop = start
            start = _aligned(stop)
        self._begin(rounding, start)
        return rounding

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, rounding: Rounding, elements: int) -> None:
        if not self._under_way and elements <= HERE_ELEMENTS_MAX:
            for piece in rounding.pieces:
                piece()
            rounding.done = len(rounding.pieces)
            return
        self._under_way += 1
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, _round_all, rounding, loop)
        work.add_done_callback(lambda done: self._ended(rounding, done))

    def _ended(self, rounding: Rounding, done: asyncio.Future[None]) -> None:
        self._under_way -= 1
        if not done.cancelled():
            rounding.advance(rounding.done if done.exception() else len(rounding.pieces), done.exception())

    def _with_feedback(self, update: TensorUpdate, tensor: int, out: Narrow, elements: slice) -> list[Piece]:
        key = (update.kind, tensor)
        residual = self._residuals.get(key)
        if residual is None:
            residual = self._residuals[key] = np.zeros(update.values.size, np.float32)
        pieces: list[Piece] = []
        for start in range(elements.start, elements.stop, PIECE_ELEMENTS):
            part = slice(start, min(start + PIECE_ELEMENTS, elements.stop))
            values, kept, rounded = update.values[part], residual[part], out[part]
            pieces.append(lambda v=values, k=kept, r=rounded: round_with_feedback(v, k, r))  # type: ignore[misc]
        return pieces

    def _buffer(self, elements: int) -> NDArray[np.uint16]:
        """Returns a free buffer that is large enough, or a new one in place of a free one that is too small."""
        for place, buffer in enumerate(self._free):
            if buffer.size >= elements:
                return self._free.pop(place)
        if self._free:
            self._free.pop()
        return np.empty(elements, np.uint16)


def _round_all(rounding: Rounding, loop: asyncio.AbstractEventLoop) -> None:
    for number, piece in enumerate(rounding.pieces, 1):
        piece()
        if number < len(rounding.pieces):
            try:
                loop.call_soon_threadsafe(rounding.advance, number)
            except RuntimeError:  # the loop is closed: nothing waits for this any more
                return


def _factors(update: TensorUpdate, out: Narrow, rows: slice) -> tuple[TensorUpdate, Piece]:
    """Returns factors in 16 bits, of which only errors of `rows` are sent, and the work that fills them in."""
    errors, activations = update.values, update.activations
    assert activations is not None
    narrow = out[: errors.size].reshape(errors.shape), out[errors.size :]
    whole = rows == slice(0, errors.shape[1])

    def work() -> None:
        # Accumulated errors of one layer may be a slice of wider rows.
        sent = np.ascontiguousarray(errors[:, rows])
        into = narrow[0].reshape(-1) if whole else np.empty(sent.size, out.dtype)
        narrowed(sent.reshape(-1), into)
        if not whole:
            narrow[0][:, rows] = into.reshape(sent.shape)
        narrowed(activations.reshape(-1), narrow[1])

    return TensorUpdate(update.kind, narrow[0], narrow[1].reshape(activations.shape)), work


def rows_of(layout: ParameterLayout, shards: Collection[int]) -> dict[int, Rows]:
    """Returns the rows of each tensor from the first to the last of some shards."""
    found: dict[int, Rows] = {}
    for index in shards:
        shard = layout.shards[index]
        first, last = found.get(shard.tensor, (shard.row_start, shard.row_stop))
        found[shard.tensor] = min(first, shard.row_start), max(last, shard.row_stop)
    return found


def _rounds_factors(update: TensorUpdate) -> bool:
    """Whether factors certainly fit into a frame; otherwise a run's product may be sent instead."""
    assert update.activations is not None
    size = update.values.size + update.activations.size
    return size * WIRE_ELEMENT_BYTES["bfloat16"] <= FACTOR_BYTES_MAX


def _elements(push: PushSet) -> int:
    """Returns how many elements a push needs in its buffer."""
    activations = (update.activations for update in push.updates.values())
    sizes = (0 if found is None else found.size for found in activations)
    return sum(_aligned(u.values.size + size) for u, size in zip(push.updates.values(), sizes, strict=True))


def _aligned(elements: int) -> int:
    """Rounds up to a whole number of cache lines of 16-bit numbers."""
    return -(-elements // 32) * 32
