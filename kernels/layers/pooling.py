"""The common part of layers that reduce each window of each channel to one number: geometry and slicing."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator

from adamctl.kernels.backend import Backend, choose
from adamctl.kernels.operation import Array, Operation, SlicedOperation, image_shape
from adamctl.kernels.slicing import OutputSlice, check_slice, halo
from adamctl.model.description import Size, pair
from adamctl.model.shapes import window_output


class Pooling2D(Operation, ABC):
    """Inputs [n, height, width, channels], outputs [n, (height - size) // stride + 1, ..., channels].

    Windows of `size` pixels start every `stride` pixels (default: the size, so that they do not overlap).
    """

    def __init__(
        self, input_shape: tuple[int, ...], size: Size, stride: Size | None = None, backend: str | None = None
    ) -> None:
        """Raises ValueError if no window fits the inputs."""
        height, width, channels = image_shape(input_shape)
        self.size = pair(size)
        self.stride = self.size if stride is None else pair(stride)
        rows = window_output(height, self.size[0], self.stride[0], "valid")
        columns = window_output(width, self.size[1], self.stride[1], "valid")
        if rows < 1 or columns < 1:
            name = type(self).__name__
            raise ValueError(f"{name}: expected a window that fits {height}x{width}; found {list(self.size)}")
        super().__init__(input_shape, (rows, columns, channels))
        self.backend: Backend = choose(backend)

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by maps, which read their own, or by rows, which read the input rows of their windows.

        If windows overlap, two parts read the same rows of the inputs.
        """
        check_slice(part, self.output_shape, ("maps", "rows"), type(self).__name__)
        height, width, channels = image_shape(self.input_shape)
        every, made = slice(None), slice(part.start, part.stop)
        if part.axis == "maps":
            operation = type(self)((height, width, part.stop - part.start), self.size, self.stride, self.backend)
            return SlicedOperation(operation, (every, every, made), (every, every, made), ())
        read, _ = halo(part.start, part.stop, height, self.size[0], self.stride[0])
        operation = type(self)((read.stop - read.start, width, channels), self.size, self.stride, self.backend)
        return SlicedOperation(operation, (read, every, every), (made, every, every), ())

    def windows(self, images: Array) -> Iterator[Array]:
        """Yields, for each pixel of the window, row by row, the view of that pixel in all windows."""
        rows, columns, _ = self.output_shape
        for dy in range(self.size[0]):
            for dx in range(self.size[1]):
                below, right = dy + (rows - 1) * self.stride[0] + 1, dx + (columns - 1) * self.stride[1] + 1
                yield images[:, dy : below : self.stride[0], dx : right : self.stride[1]]
