"""A loss of one's own: what users write, and how it is found by name (docs/losses.md).

A run imports it by its name, `package.module:Class`, in every process that needs it. Nothing is pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adamctl.errors import ConfigurationError, CustomError
from adamctl.model.custom.asking import ask
from adamctl.model.custom.modules import Kind, class_at, path_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from adamctl.model.tally import Tally

    Array = NDArray[np.float32]


class Loss(ABC):
    """A loss of one's own, with its metric. One object without arguments serves all threads: it keeps nothing.

    Attributes:
        answers: what outputs are compared with: `targets`, float32 [n, k], or `labels`, int32 [n].
        metric_name: what models are judged by; unless `metric` is written, that is the mean loss.
        larger_is_better: the direction of the metric.
    """

    answers: ClassVar[Literal["targets", "labels"]] = "targets"
    metric_name: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool] = False

    @abstractmethod
    def evaluate(self, outputs: Array, targets: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """Returns the loss of each example, [n], of outputs [n, units] and targets [n, k] or labels [n].

        A batch's loss is the mean. Both arrays are to be read only.
        """

    @abstractmethod
    def error(self, outputs: Array, targets: NDArray[Any], out: Array) -> None:
        """Writes the derivative of the mean of the losses at the outputs into `out` [n, units], all of it."""

    def native_error(self, outputs: Array, targets: NDArray[Any], out: Array, losses: Array) -> Sequence[Any] | None:
        """Returns, as calls of kernels, what writes the loss of each example into `losses` [n] and `error` into `out`.

        Asked once, when a step is prepared: the arrays stay where they are, and their contents come later. Labels are
        int32 in the range of the outputs. None: Python computes it.
        """
        return None

    def measure(self, outputs: Array, targets: NDArray[Any]) -> Sequence[float]:
        """Returns sums over the examples, of which `metric` makes the value; batches' and workers' are added up.

        Called in evaluations, always for as many numbers.
        """
        return ()

    def metric(self, tally: Tally) -> float:
        """Returns the metric from sums over a whole split: `examples`, `loss_sum`, and `sums`, those of `measure`."""
        return tally.loss_sum / tally.examples

    def target_numbers(self, units: int) -> int:
        """Returns how many numbers a target has where the last layer has so many units."""
        return units

    def finish(self, outputs: Array) -> Array:
        """Turns outputs [n, units] into those that users see, in place or anew; returns them."""
        return outputs


def is_custom_loss(loss: str) -> bool:
    """Whether a loss is one's own, named `package.module:Class`."""
    return ":" in loss


@cache
def custom_loss(name: str) -> Loss:
    """Returns the loss `package.module:Class`, one object for each name.

    Raises:
        ConfigurationError: there is no such module or class, or it is no `adamctl.Loss`, or cannot be made.
    """
    where = f"model.loss: {name}"
    try:
        return made(class_at(name, _LOSSES))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def made(found: type[Loss]) -> Loss:
    """Returns an object of a class. Raises ConfigurationError: it cannot be made, or compares with nothing known."""
    if found.answers not in ("targets", "labels"):
        raise ConfigurationError(f'answers: expected "targets" or "labels"; found {found.answers!r}')
    try:
        return found()
    except TypeError as error:
        raise ConfigurationError(f"cannot be made: {error}; write all its methods, and no arguments") from error


def write_error(own: Loss, outputs: Array, targets: NDArray[Any], out: Array) -> None:
    """Has a loss write its error. Raises CustomError: it failed, or returned something in place of writing it."""
    where = f"{type(own).__name__}.error"
    returned = ask(where, own.error, outputs, targets, out)
    if returned is not None:
        found = type(returned).__name__
        raise CustomError(f"{where}: expected results in out and nothing returned; found {found}: write out[...] = ...")


def finished_by(own: Loss, outputs: Array) -> Array:
    """Returns what users see of outputs. Raises CustomError: it failed, or returned no array with a row of each."""
    where = f"{type(own).__name__}.finish"
    found: Array = ask(where, own.finish, outputs)
    shape = getattr(found, "shape", None)
    if shape is None or shape[:1] != outputs.shape[:1]:
        shown = f"{found!r:.80}" if shape is None else f"shape {list(shape)}"
        raise CustomError(f"{where}: expected what users see of each of {len(outputs)} examples; found {shown}")
    return found


def measured_by(own: Loss, outputs: Array, targets: NDArray[Any]) -> tuple[float, ...]:
    """Returns sums over examples. Raises CustomError: it failed, or returned no list of numbers."""
    where = f"{type(own).__name__}.measure"
    found = ask(where, own.measure, outputs, targets)
    try:
        return tuple(map(float, found))
    except (TypeError, ValueError):
        raise CustomError(f"{where}: expected a list of numbers; found {found!r:.80}") from None


def target_numbers_of(own: Loss, units: int) -> int:
    """Returns how many numbers a target has. Raises CustomError: it failed, or returned no number of them."""
    where = f"{type(own).__name__}.target_numbers"
    found = ask(where, own.target_numbers, units)
    if not isinstance(found, Integral) or found < 1:
        raise CustomError(f"{where}: expected a whole number of at least 1; found {found!r:.80}")
    return int(found)


def has_native(loss: str) -> bool:
    """Whether a step can compute a loss of one's own without Python."""
    return type(custom_loss(loss)).native_error is not Loss.native_error


def name_of(loss: str | type[Loss] | Loss) -> str:
    """Returns the name by which every process imports a loss that is given as a name, a class or an object.

    Raises:
        ConfigurationError: other processes could not import it.
    """
    if isinstance(loss, str):
        return loss
    try:
        return path_of(loss if isinstance(loss, type) else type(loss), _LOSSES)
    except ConfigurationError as error:
        raise ConfigurationError(f"loss: {error}") from error


_LOSSES = Kind(Loss, "loss", "losses")
