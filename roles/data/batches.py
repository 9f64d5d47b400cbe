"""Examples on the reader's side: the check that a reply is what was requested, and the scaling of what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError
from adamctl.net.pool import SIZE_BYTES_MAX, BufferPool
from adamctl.net.transport import Reply
from adamctl.roles.data.core import SKIPPED, Range
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.scaling import Scaling
from adamctl.wire.messages import DataReadReply

ReadInto = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Where a read should write: C-contiguous images [n, *input shape] and labels [n]."""

SCALED_ON_THE_LOOP_MAX: Final = 1 << 19
"""Values, about 0.1 ms: more are scaled in another thread, so that the loop goes on."""
_POOL_BYTES: Final = 512 << 20


class Batch:
    """Examples that were read: `images` float32 [n, *input shape] and `labels` int32 [n], valid until `release`."""

    def __init__(
        self, images: NDArray[np.float32], labels: NDArray[np.int32], release: Callable[[], None] | None = None
    ) -> None:
        """`release` is called once, when the batch is released."""
        self.images = images
        self.labels = labels
        self._release = release

    def release(self) -> None:
        """Returns the memory to the pool it came from, if there is one; may be called more than once."""
        release, self._release = self._release, None
        if release is not None:
            release()


class BatchMemory:
    """Memory for batches whose scaled values are longer than what was received: taken again and again."""

    def __init__(self) -> None:
        self._pool = BufferPool(_POOL_BYTES)

    def take(self, examples: int, shape: tuple[int, ...]) -> Batch:
        """Returns a batch of undefined content; new memory if the pool has none left."""
        elements = examples * prod(shape)
        size_bytes = 4 * (elements + examples)
        buffer = self._pool.try_allocate(size_bytes) if size_bytes <= SIZE_BYTES_MAX else None
        if buffer is None:
            return Batch(*new_arrays(examples, shape))
        images = np.frombuffer(buffer.view, np.float32, elements).reshape(examples, *shape)
        return Batch(images, np.frombuffer(buffer.view, np.int32, examples, 4 * elements), buffer.release)


def without_skipped(
    images: NDArray[np.float32], labels: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Returns the examples that data servers have not left out, in order; the arrays themselves if none was."""
    there = labels != SKIPPED
    return (images, labels) if there.all() else (images[there], labels[there])


def new_arrays(examples: int, input_shape: tuple[int, ...]) -> ReadInto:
    return np.empty((examples, *input_shape), np.float32), np.empty(examples, np.int32)


def check_into(
    images: NDArray[np.float32], labels: NDArray[np.int32], examples: int, input_shape: tuple[int, ...]
) -> None:
    if images.shape != (examples, *input_shape) or labels.shape != (examples,):
        raise ValueError(
            f"expected arrays of {[examples, *input_shape]} and {[examples]} to read into, "
            f"found {list(images.shape)} and {list(labels.shape)}"
        )
    if images.dtype != np.float32 or labels.dtype != np.int32:
        raise ValueError(
            f"expected float32 images and int32 labels to read into, found {images.dtype} and {labels.dtype}"
        )
    if not (images.flags.c_contiguous and labels.flags.c_contiguous):
        raise ValueError("expected C-contiguous arrays to read into")


def receiving_views(into: ReadInto, form: ExampleForm, padding: memoryview) -> list[memoryview] | None:
    """Returns the parts of a body as buffers to receive into: images, padding (dropped), labels.

    None for bytes: the arrays are of another type, so they are received apart.
    """
    images, labels = into
    if form.numpy_dtype != images.dtype:
        return None
    padding_bytes = form.body(len(images)).labels_offset - images.nbytes
    views = [images.reshape(-1).view(np.uint8).data, labels.view(np.uint8).data]
    return [views[0], padding[:padding_bytes], views[1]] if padding_bytes else views


class Received:
    """A reply whose length has been checked: `values` as the server sent them, [n, elements], and `labels` [n].

    With `into`, of the same type as was sent, these are the caller's arrays. `release` it, unless it becomes a batch.
    """

    def __init__(self, reply: Reply, form: ExampleForm, wanted: Range, into: ReadInto | None, server: str) -> None:
        """Raises ProtocolError: the body is not what this range needs; the reply is released then."""
        message, examples = reply.message, wanted.stop - wanted.start
        assert isinstance(message, DataReadReply)
        self.reply = reply
        self.values: NDArray[Any]
        self.labels: NDArray[np.int32]
        if reply.received_into and into is not None:
            self.values, self.labels = into[0].reshape(examples, -1), into[1]
            return
        layout = form.body(examples)
        found = (message.examples, message.labels_offset, len(reply.body))
        if found != (examples, *layout):
            reply.release()
            raise ProtocolError(
                f"{server}: expected {examples} examples, labels at {layout.labels_offset}, {layout.size_bytes} "
                f"bytes; found {found}"
            )
        self.values = np.frombuffer(reply.body, form.numpy_dtype, examples * form.elements).reshape(examples, -1)
        self.labels = np.frombuffer(reply.body, np.int32, examples, layout.labels_offset)

    async def batch(
        self, shape: tuple[int, ...], scaling: Scaling, into: ReadInto | None, memory: BatchMemory
    ) -> Batch:
        """Returns the examples as they are trained on, in `into` if that is given."""
        in_place, scale = True, partial(scaling.apply, self.values)
        if self.reply.received_into and into is not None:
            made = Batch(*into)
        elif into is None and self._scales_in_place(scaling):
            made = Batch(self.values.reshape(-1, *shape), self.labels, self.reply.release)
        else:
            made = Batch(*into) if into is not None else memory.take(len(self.values), shape)
            in_place, scale = False, partial(self._write, made, scaling)
        try:
            await _in_thread_if_long(self.values.size, scale)
        except BaseException:
            made.release()
            raise
        finally:
            if not in_place:
                self.reply.release()
        return made

    def _scales_in_place(self, scaling: Scaling) -> bool:
        return self.values.dtype == np.float32 and (self.values.flags.writeable or scaling == Scaling())

    def _write(self, made: Batch, scaling: Scaling) -> None:
        scaling.write(self.values, made.images.reshape(self.values.shape))
        made.labels[...] = self.labels


async def _in_thread_if_long(values: int, work: Callable[[], None]) -> None:
    """Does work on so many values. It has ended when this returns or raises, so nothing writes later."""
    if values <= SCALED_ON_THE_LOOP_MAX:
        work()
        return
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    done.result()
