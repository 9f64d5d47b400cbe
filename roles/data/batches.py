"""Examples on the reader's side: the buffers that receive them, and the check that a reply is what was requested."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError
from adamctl.net.transport import Reply
from adamctl.roles.data.core import Range, body_layout
from adamctl.wire.messages import DataReadReply

ReadInto = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Where a read should write: C-contiguous images [n, *input shape] and labels [n]."""


class Batch:
    """Examples that were read: `images` float32 [n, *input shape] and `labels` int32 [n], valid until `release`."""

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.int32], reply: Reply | None = None) -> None:
        self.images = images
        self.labels = labels
        self._reply = reply

    def release(self) -> None:
        """Returns the memory to the connection's pool, if it came from there; may be called more than once."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.release()


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


def receiving_views(into: ReadInto, padding: memoryview) -> list[memoryview]:
    """Returns the parts of a body as buffers to receive into: images, padding (dropped), labels."""
    images, labels = into
    padding_bytes = body_layout(len(images), prod(images.shape[1:]))[0] - images.nbytes
    views = [images.reshape(-1).view(np.uint8).data, labels.view(np.uint8).data]
    return [views[0], padding[:padding_bytes], views[1]] if padding_bytes else views


def batch_of(reply: Reply, shape: tuple[int, ...], wanted: Range, into: ReadInto | None, server: str) -> Batch:
    """Returns the batch in a reply, after checking that its body has the right length."""
    message, examples = reply.message, wanted.stop - wanted.start
    labels_offset, size_bytes = body_layout(examples, prod(shape))
    assert isinstance(message, DataReadReply)
    if into is not None and not len(reply.body):
        return Batch(*into)
    found = (message.examples, message.labels_offset, len(reply.body))
    if found != (examples, labels_offset, size_bytes):
        reply.release()
        raise ProtocolError(
            f"{server}: expected {examples} examples, labels at {labels_offset}, {size_bytes} bytes; found {found}"
        )
    images = np.frombuffer(reply.body, np.float32, examples * prod(shape)).reshape(examples, *shape)
    labels = np.frombuffer(reply.body, np.int32, examples, labels_offset)
    if into is None:
        return Batch(images, labels, reply)
    into[0][...] = images
    into[1][...] = labels
    reply.release()
    return Batch(*into)
