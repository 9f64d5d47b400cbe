"""Examples on the reader's side: the check that a reply is what was requested, and the scaling of what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError
from adamctl.net.pool import SIZE_BYTES_MAX, BufferPool, PooledBuffer
from adamctl.net.transport import Reply
from adamctl.roles.data.client.data_set import DataSet
from adamctl.roles.data.core import SKIPPED, Range
from adamctl.roles.data.form import VALUE_BYTES, BodyLayout, ExampleForm
from adamctl.roles.data.scaling import Scaling
from adamctl.wire.messages import DataReadReply

ReadInto = tuple[NDArray[np.float32], NDArray[Any]]
"""Where a read should write: C-contiguous images [n, *input shape], and int32 labels [n] or float32 targets [n, k]."""

SCALED_ON_THE_LOOP_MAX: Final = 1 << 19
"""Values, about 0.1 ms: more are scaled in another thread, so that the loop goes on."""
_POOL_BYTES: Final = 512 << 20


class Batch:
    """Examples that were read, valid until `release`.

    Attributes:
        images: float32 [n, *input shape].
        labels: int32 [n], SKIPPED where an example was left out; [0] if the data set has targets of its own.
        targets: float32 [n, k], what outputs should come close to; None if the data set has classes.
    """

    def __init__(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int32],
        release: Callable[[], None] | None = None,
        targets: NDArray[np.float32] | None = None,
    ) -> None:
        """`release` is called once, when the batch is released."""
        self.images = images
        self.labels = labels
        self.targets = targets
        self._release = release

    @property
    def answers(self) -> NDArray[Any]:
        """What outputs are compared with: the targets, or else the labels."""
        return self.labels if self.targets is None else self.targets

    @property
    def are_there(self) -> NDArray[np.bool_]:
        """Which examples data servers have not left out, [n]; where targets are inputs, the labels say so."""
        return _are_there(self.labels if self.targets is None or len(self.labels) else self.targets)

    def release(self) -> None:
        """Returns the memory to the pool it came from, if there is one; may be called more than once."""
        release, self._release = self._release, None
        if release is not None:
            release()


def batch_over(arrays: ReadInto, form: ExampleForm, release: Callable[[], None] | None = None) -> Batch:
    """Returns a batch of these arrays."""
    images, labels = arrays
    if form.targets_are_inputs:
        return Batch(images, labels, release, form.answers(images, labels))
    if form.targets:
        return Batch(images, np.empty(0, np.int32), release, labels)
    return Batch(images, labels, release)


class BatchMemory:
    """Memory for batches whose scaled values are longer than what was received: taken again and again."""

    def __init__(self) -> None:
        self._pool = BufferPool(_POOL_BYTES)

    def take(self, examples: int, data: DataSet) -> tuple[ReadInto, Callable[[], None]]:
        """Returns arrays of undefined content, new ones if the pool has no room, and how to give them back."""
        form, images_bytes = data.form, VALUE_BYTES * examples * data.form.elements
        buffer = self._take(examples * form.scaled_bytes)
        if buffer is None:
            return new_arrays(examples, data.input_shape, form), nothing
        images = np.frombuffer(buffer.view[:images_bytes], np.float32).reshape(examples, *data.input_shape)
        labels = np.frombuffer(buffer.view[images_bytes:], form.label_dtype).reshape(form.label_shape(examples))
        return (images, labels), buffer.release

    def take_values(self, examples: int, form: ExampleForm) -> tuple[NDArray[Any], Callable[[], None]]:
        """Returns room for values as they are sent, [examples, elements], and how to give it back."""
        buffer = self._take(examples * form.example_bytes)
        if buffer is None:
            return np.empty((examples, form.elements), form.numpy_dtype), nothing
        return np.frombuffer(buffer.view, form.numpy_dtype).reshape(examples, form.elements), buffer.release

    def _take(self, size_bytes: int) -> PooledBuffer | None:
        return self._pool.try_allocate(size_bytes) if 0 < size_bytes <= SIZE_BYTES_MAX else None


def without_skipped(images: NDArray[np.float32], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Returns the examples that data servers have not left out, in order; the arrays themselves if none was."""
    there = _are_there(labels)
    return (images, labels) if there.all() else (images[there], labels[there])


def _are_there(labels: NDArray[Any]) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = labels != SKIPPED if labels.dtype.kind == "i" else ~np.isnan(labels[:, 0])
    return there


def nothing() -> None:
    return None


def new_arrays(examples: int, input_shape: tuple[int, ...], form: ExampleForm) -> ReadInto:
    return np.empty((examples, *input_shape), np.float32), np.empty(form.label_shape(examples), form.label_dtype)


def check_into(
    images: NDArray[np.float32], labels: NDArray[Any], examples: int, input_shape: tuple[int, ...], form: ExampleForm
) -> None:
    """Raises ValueError if these are not arrays to read so many examples into."""
    known = form.label_shape(examples)
    if images.shape != (examples, *input_shape) or labels.shape != known:
        raise ValueError(
            f"expected arrays of {[examples, *input_shape]} and {list(known)} to read into, "
            f"found {list(images.shape)} and {list(labels.shape)}"
        )
    if images.dtype != np.float32 or labels.dtype != form.label_dtype:
        raise ValueError(
            f"expected float32 images and {form.label_dtype} labels or targets to read into, "
            f"found {images.dtype} and {labels.dtype}"
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
    views = [images.reshape(-1).view(np.uint8).data, labels.reshape(-1).view(np.uint8).data]
    return [views[0], padding[:padding_bytes], views[1]] if padding_bytes else views


class Received:
    """A reply whose length has been checked: `values` as the server sent them, [n, elements], and labels or targets.

    With `into`, of the same type as was sent, these are the caller's arrays. `release` it, unless it becomes a batch.
    """

    def __init__(self, reply: Reply, form: ExampleForm, wanted: Range, into: ReadInto | None, server: str) -> None:
        """Raises ProtocolError: the body is not what this range needs; the reply is released then."""
        message, examples = reply.message, wanted.stop - wanted.start
        assert isinstance(message, DataReadReply)
        self.reply, self.form = reply, form
        self.values: NDArray[Any]
        self.labels: NDArray[Any]
        if reply.received_into and into is not None:
            self.values, self.labels = into[0].reshape(examples, -1), into[1]
            return
        layout = form.body(examples)
        _check_layout(reply, examples, layout, server)
        self.values, self.labels = _arrays_in(reply, form, examples, layout)

    async def batch(self, data: DataSet, into: ReadInto | None, memory: BatchMemory) -> Batch:
        """Returns the examples as they are trained on, in `into` if that is given."""
        scaling = data.scaling
        arrays, release = into, nothing
        if into is not None and self.reply.received_into:
            scale = partial(scaling.apply, self.values)
        elif into is None and self._scales_in_place(scaling):
            arrays, release = (self.values.reshape(-1, *data.input_shape), self.labels), self.reply.release
            scale = partial(scaling.apply, self.values)
        else:
            if arrays is None:
                arrays, release = memory.take(len(self.values), data)
            scale = partial(self._write, arrays, scaling)
        try:
            await in_thread_if_long(self.values.size, scale)
        except BaseException:
            release()
            raise
        finally:
            if release != self.reply.release:
                self.reply.release()
        assert arrays is not None
        return batch_over(arrays, self.form, release)

    def _scales_in_place(self, scaling: Scaling) -> bool:
        return self.values.dtype == np.float32 and (self.values.flags.writeable or scaling == Scaling())

    def _write(self, arrays: ReadInto, scaling: Scaling) -> None:
        scaling.write(self.values, arrays[0].reshape(self.values.shape))
        arrays[1][...] = self.labels


class PartOfRange:
    """A server's part of a range, checked: `values` as it sent them, labels or targets, and their `positions` in it.

    Its `reply` must be released.
    """

    def __init__(self, reply: Reply, form: ExampleForm, server: str) -> None:
        """Raises ProtocolError: the body is not as long as its examples need; the reply is released then."""
        assert isinstance(reply.message, DataReadReply)
        self.reply = reply
        examples = max(reply.message.examples, 0)
        layout = form.body(examples, examples)
        _check_layout(reply, examples, layout, server)
        self.values, self.labels = _arrays_in(reply, form, examples, layout)
        self.positions = np.frombuffer(reply.body, np.int32, examples, layout.positions_offset)


def _check_layout(reply: Reply, examples: int, layout: BodyLayout, server: str) -> None:
    message = reply.message
    assert isinstance(message, DataReadReply)
    found = (message.examples, message.labels_offset, message.positions_offset, len(reply.body))
    if found != (examples, *layout):
        reply.release()
        raise ProtocolError(
            f"{server}: expected {examples} examples, labels at {layout.labels_offset}, positions at "
            f"{layout.positions_offset}, {layout.size_bytes} bytes; found {found}"
        )


def _arrays_in(reply: Reply, form: ExampleForm, examples: int, layout: BodyLayout) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the values [n, elements] and the labels or targets in a body."""
    values = np.frombuffer(reply.body, form.numpy_dtype, examples * form.elements).reshape(examples, form.elements)
    end = layout.labels_offset + examples * form.label_bytes
    labels = np.frombuffer(reply.body[layout.labels_offset : end], form.label_dtype)
    return values, labels.reshape(form.label_shape(examples))


async def in_thread_if_long(values: int, work: Callable[[], None]) -> None:
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
