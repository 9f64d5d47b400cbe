"""What computes a trained model's outputs: one network in this process, or what several processes hold of it.

Examples come and go in parts, so that inputs larger than memory can be predicted: only as many are there as are being
computed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.kernels.layers.losses import Loss
from adamctl.kernels.operation import Array
from adamctl.kernels.step.network import Network
from adamctl.model.description import Model
from adamctl.model.layout import Tensor
from adamctl.roles.ps.checkpoint_files import read_checkpoint


class Forward(Protocol):
    """A trained model that computes.

    Attributes:
        batch: most examples of a part.
    """

    batch: int

    def outputs(self, parts: Iterable[Array]) -> Iterator[Array]:
        """Yields the outputs [n, units] of each part in turn, in the form that the loss takes, as arrays of their own.

        Takes no more parts ahead than it can work on.

        Args:
            parts: examples [1 <= n <= batch, *input], float32, C-contiguous; each is read before the next is taken.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds; it may be used again, and then takes it anew."""
        ...


class StoredParameters:
    """The parameters of a checkpoint, read by rows."""

    def __init__(self, folder: Path, tensors: Sequence[Tensor]) -> None:
        """Raises DamagedDataError: a file is missing or damaged, or has other tensors than these of the network."""
        self._checkpoint = read_checkpoint(folder)
        shapes = {tensor.name: tensor.shape for tensor in self._checkpoint.tensors}
        numbers = {tensor.name: number for number, tensor in enumerate(self._checkpoint.tensors)}
        for tensor in tensors:
            found = shapes.get(tensor.name)
            if found != tensor.shape:
                what = "nothing" if found is None else str(list(found))
                raise DamagedDataError(
                    f"checkpoint {folder}: {tensor.name}: expected {list(tensor.shape)}; found {what}"
                )
        self._numbers = [numbers[tensor.name] for tensor in tensors]

    def read(self, tensor: int, row_start: int, out: Array) -> None:
        """Reads rows of a tensor from `row_start` on into `out` [rows, ...], C-contiguous.

        Raises:
            DamagedDataError: a shard that holds some of them is damaged; the message names it.
        """
        self._checkpoint.read_values(self._numbers[tensor], row_start, out)


class WholeNetwork:
    """The whole network in this process, computed by the thread that asks. See `Forward`.

    Attributes:
        batch: as given.
    """

    def __init__(self, model: Model, folder: Path, batch: int) -> None:
        """Reads the parameters from a checkpoint. Raises as `StoredParameters`."""
        self.batch, self._network = batch, Network(model, batch)
        self._flat = np.zeros(self._network.flat_size, np.float32)
        stored = StoredParameters(folder, self._network.tensors)
        for number, view in enumerate(self._network.views(self._flat)):
            stored.read(number, 0, view)
        self._context = self._network.context(training=False)
        self._lock = threading.Lock()

    def outputs(self, parts: Iterable[Array]) -> Iterator[Array]:
        """See `Forward`; several threads may use it in turn."""
        for part in parts:
            with self._lock:
                if len(part) == self.batch and self._context.forward is None:
                    self._network.prepare_predictions(self._context, self._flat)
                yielded = np.array(self._network.outputs(self._context, self._flat, part))
            yield yielded

    def close(self) -> None:
        """See `Forward`: there is nothing that others could use meanwhile."""


def predictions(
    forward: Forward,
    loss: Loss,
    units: int,
    parts: Iterable[NDArray[Any]],
    prepare: Callable[[NDArray[Any]], Array] = np.ascontiguousarray,
) -> Iterator[Array]:
    """Yields the finished outputs [n, units] of each part in turn; a classifier's are probabilities.

    Args:
        units: outputs of the network.
        parts: raw examples [n, ...], of any length.
        prepare: makes of up to `forward.batch` of them what the network expects.
    """
    lengths: deque[int] = deque()

    def pieces() -> Iterator[Array]:
        for part in parts:
            lengths.append(len(part))
            for start in range(0, len(part), forward.batch):
                yield prepare(part[start : start + forward.batch])

    found: list[Array] = []
    for outputs in forward.outputs(pieces()):
        while not lengths[0]:
            yield np.empty((lengths.popleft(), units), np.float32)
        found.append(loss.finish(outputs))
        if sum(map(len, found)) == lengths[0]:
            lengths.popleft()
            yield found[0] if len(found) == 1 else np.concatenate(found)
            found = []
    yield from (np.empty((length, units), np.float32) for length in lengths)
