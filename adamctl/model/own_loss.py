"""A loss of one's own: what users write, and how it is found by name (docs/losses.md).

A run imports it by its name, `package.module:Class`, in every process that needs it. Nothing is pickled.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from sysconfig import get_paths
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adamctl.errors import ConfigurationError

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


def is_own(loss: str) -> bool:
    """Whether a loss is one's own, named `package.module:Class`."""
    return ":" in loss


@cache
def own_loss(name: str) -> Loss:
    """Returns the loss `package.module:Class`, one object for each name.

    The module is looked for as Python does, then in the current folder.

    Raises:
        ConfigurationError: there is no such module or class, or it is no `adamctl.Loss`, or cannot be made.
    """
    module_name, _, class_name = name.partition(":")
    where = f"model.loss: {name}"
    if module_name == "__main__":
        raise ConfigurationError(f"{where}: {_OF_MAIN}")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise ConfigurationError(f'{where}: expected "package.module:Class", such as "mylosses:Ranking"')
    found = getattr(_module(module_name, where), class_name, None)
    if not isinstance(found, type) or not issubclass(found, Loss):
        what = f"there is no {class_name} in {module_name}" if found is None else "it is no class derived from Loss"
        raise ConfigurationError(f"{where}: {what}; expected a class derived from adamctl.Loss")
    if found.answers not in ("targets", "labels"):
        raise ConfigurationError(f'{where}: answers: expected "targets" or "labels"; found {found.answers!r}')
    try:
        return found()
    except TypeError as error:
        why = f"cannot be made: {error}; write all its methods, and no arguments"
        raise ConfigurationError(f"{where}: {why}") from error


def name_of(loss: str | type[Loss] | Loss) -> str:
    """Returns the name by which every process imports a loss that is given as a name, a class or an object.

    Raises:
        ConfigurationError: other processes could not import it.
    """
    if isinstance(loss, str):
        return loss
    given = loss if isinstance(loss, type) else type(loss)
    name = f"{given.__module__}:{given.__qualname__}"
    if not issubclass(given, Loss):
        raise ConfigurationError(f"loss: expected a name or a class derived from adamctl.Loss; found {name}")
    if given.__module__ == "__main__" or "<locals>" in name:
        raise ConfigurationError(f"loss: {name}: {_OF_MAIN}")
    if type(own_loss(name)) is not given:
        raise ConfigurationError(f"loss: {name}: another class is imported by this name; give it a name of its own")
    return name


def with_folder(environment: Mapping[str, str], name: str) -> dict[str, str]:
    """Returns the environment of processes that are to find a loss where this one has found it.

    A folder in which Python installs packages is not added: everybody has that.
    """
    if not is_own(name):
        return dict(environment)
    own_loss(name)  # or refuses
    file = getattr(sys.modules[name.partition(":")[0].partition(".")[0]], "__file__", None)
    if file is None:
        return dict(environment)
    folder = Path(file).absolute().parent
    folder = folder.parent if Path(file).name == "__init__.py" else folder
    if str(folder) in get_paths().values():
        return dict(environment)
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([*([before] if before else []), str(folder)])}


_OF_MAIN = (
    "other processes cannot import a class of the program that runs; put it into a module of its own, such as "
    'mylosses.py beside the program, and name it as "mylosses:Class"'
)


def _module(name: str, where: str) -> Any:
    folder = os.getcwd()
    try:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}.") or folder in sys.path:
                raise
            sys.path.append(folder)
            return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{where}: {error}; install it where every process of the run finds it, or start in the folder of its file"
        ) from error
    except Exception as error:
        raise ConfigurationError(f"{where}: importing {name} failed: {type(error).__name__}: {error}") from error
