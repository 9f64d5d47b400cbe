"""What a layer of the user's own is written as: the computation at every node, and what a node reads (DistBelief 3).

A class says which shapes it has, which parameters, and what a node reads; from that follow slices, halos, buffers,
transfers and sums. Its `upward` and `downward` get arrays [n, ...] of numpy and write into arrays that are allocated
once (Adam 3.2.1). They never see who computes the rest of the layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, dataclass_transform

from adamctl.errors import ConfigurationError
from adamctl.model.description import Initializer, Padding, Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.floating[Any]]

Shape: TypeAlias = tuple[int, ...]
Range: TypeAlias = tuple[int, int]
"""[start, stop) along one axis."""
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Parameter:
    """One array of parameters of a layer.

    Attributes:
        shape: axis 0 is the layer's output rows (units of a vector, rows of an image), unless it is shared.
        init: initial values: `zeros`, `ones`, a number for all, or an initializer of `adamctl.model.description`, with
            axis 0 as outputs and the others as inputs.
        shared: every part of the layer computes with all of it; gradients of parts are added up.
    """

    shape: Shape
    init: Initializer | Literal["ones"] = "zeros"
    shared: bool = False


@dataclass(frozen=True)
class Window:
    """A node reads a window of the image, all maps of it.

    Attributes:
        size, stride: height and width of the window, and distance between two: one number for both, or two.
        padding: `valid`: windows lie inside the image; `same`: with zeros around it, one for each `stride` pixels.
    """

    size: Size
    stride: Size = 1
    padding: Padding = "valid"


@dataclass(frozen=True)
class Same:
    """A node reads the input at its own place alone."""


@dataclass(frozen=True)
class Full:
    """A node reads all inputs."""


Connectivity: TypeAlias = Window | Same | Full


@dataclass(frozen=True)
class Message:
    """What goes between nodes: up, a node's output to all that read it; down, an error to the node whose output it is.

    Attributes:
        dtype: of the numbers.
        per_node: numbers of one message. For more, give the outputs that many maps.
        combine: how a node takes several: `sum`, as the chain rule adds errors up.
    """

    dtype: Literal["float32"] = "float32"
    per_node: Literal[1] = 1
    combine: Literal["sum"] = "sum"

    def __post_init__(self) -> None:
        if (self.dtype, self.per_node, self.combine) != ("float32", 1, "sum"):
            found = f'Message("{self.dtype}", per_node={self.per_node}, combine="{self.combine}")'
            raise ConfigurationError(
                f'expected Message("float32", per_node=1, combine="sum"); found {found}; to send more numbers of a '
                "node, give the outputs more maps"
            )


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a layer that is computed here: all of it, or what one partition of a replica has.

    Attributes:
        input, output: shapes of one example of the whole layer.
        reads: per axis of the input, the range that the part reads, without zeros around the image.
        makes: per axis of the output, the range that it computes.
        input_shape: of one example of `inputs`. With a `Window`, rows and columns are the windows': those of output
            (i, j) begin at (i * stride, j * stride), and zeros stand for what lies outside the image.
        output_shape: of one example of `out` and `error`.
        inside: with a `Window`: [rows, columns] of `inputs`, 1 inside the image and 0 outside.
        counts: with a `Window`: [rows, columns] of the part's outputs, how many pixels of each window lie inside.
    """

    input: Shape
    output: Shape
    reads: tuple[Range, ...]
    makes: tuple[Range, ...]
    input_shape: Shape
    output_shape: Shape
    inside: Any = None
    counts: Any = None


def name_problem(name: str) -> str:
    """Returns why a layer cannot be called so, or nothing."""
    if NAME.fullmatch(name) and not name[-1].isdigit():
        return ""
    return (
        f"expected a name of small letters, digits and _, with a letter first and no digit at the end; found {name!r}"
    )


@dataclass_transform(frozen_default=True)
class Layer:
    """A layer of the user's own: `class Whiten(adam.Layer, name="whiten"): size: int = 5`.

    Annotated attributes are its keys: numbers, texts, `true` or `false`, and tuples of these. An object holds nothing
    else: it is shared by all threads. Arrays of `upward` and `downward` are C-contiguous [n, ...] of float32, or of
    float64 in `check_layer`. They must write every element of `out` and of `gradients`, change no other array but
    `state` and `error`, and return nothing.

    Attributes:
        name: what it is called in the network: `whiten1`, and in names of parameters; the class's own by default.
        up, down: what goes between nodes.
    """

    name: ClassVar[str] = ""
    up: ClassVar[Message] = Message()
    down: ClassVar[Message] = Message()

    def __init_subclass__(cls, name: str | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower() if name is None else name
        if problem := name_problem(cls.name):
            raise ConfigurationError(f"{cls.__qualname__}: {problem}")
        dataclass(frozen=True)(cls)

    def output_shape(self, input: Shape) -> Shape:
        """Returns the shape of one output example: [units], or [height, width, maps]."""
        raise NotImplementedError

    def connectivity(self) -> Connectivity:
        """Returns what a node reads."""
        raise NotImplementedError

    def parameters(self, input: Shape) -> Mapping[str, Parameter]:
        """Returns name -> parameter."""
        return {}

    def state(self, part: Part) -> Mapping[str, Shape]:
        """Returns name -> shape, for one example, of an array that `upward` leaves to `downward`."""
        return {}

    def upward(
        self, part: Part, inputs: Array, parameters: Mapping[str, Array], state: Mapping[str, Array], out: Array
    ) -> None:
        """Computes the outputs of `inputs` into `out`."""
        raise NotImplementedError(f"{type(self).__name__} has no upward; define it")

    def downward(
        self,
        part: Part,
        error: Array,
        inputs: Array,
        parameters: Mapping[str, Array],
        gradients: Mapping[str, Array],
        state: Mapping[str, Array],
        out: Array | None,
    ) -> None:
        """Computes gradients, and the error at `inputs` into `out` unless that is None, from the error at the outputs.

        `error` is the loss gradient with respect to the outputs, already divided by the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no downward; define it")

    def native_upward(
        self, part: Part, inputs: Array, parameters: Mapping[str, Array], state: Mapping[str, Array], out: Array
    ) -> Sequence[Any] | None:
        """Returns `upward` of these arrays as calls of kernels; None: Python does it."""
        return None

    def native_downward(
        self,
        part: Part,
        error: Array,
        inputs: Array,
        parameters: Mapping[str, Array],
        gradients: Mapping[str, Array],
        state: Mapping[str, Array],
        out: Array | None,
    ) -> Sequence[Any] | None:
        """Returns `downward` of these arrays as calls of kernels; None: Python does it."""
        return None
