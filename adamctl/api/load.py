"""`load`: reads a trained model back from its run, for use in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adamctl.config.experiment import Experiment
from adamctl.launch.classify import Ready, as_trained, fitting
from adamctl.launch.prediction.forward import Forward, StoredParameters, predictions
from adamctl.launch.prediction.processes import Processes, open_forward
from adamctl.launch.trained import Trained, data_of, evaluate, load_trained, open_data
from adamctl.model.description import Model
from adamctl.model.layout import tensors_of


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, as `load` returns it.

    With several partitions or threads it has processes of its own, from its first prediction on. They end with `close`,
    with the block that it manages (`with adam.load(...) as model:`), or with the object.

    Attributes:
        trained: the model, with its checkpoint.
        forward: what computes its outputs.
        search: folders that are searched first for its data.
    """

    trained: Trained
    forward: Forward
    search: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Path:
        """The folder that the parameters were read from."""
        return self.trained.checkpoint

    @property
    def experiment(self) -> Experiment:
        """The experiment that produced the model."""
        return self.trained.experiment

    @property
    def model(self) -> Model:
        """The network."""
        return self.trained.experiment.model

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs; numbers if neither the checkpoint nor the data tell any."""
        return self._ready.classes

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Reads the arrays by name: `dense1.weight` [units, inputs] and so on."""
        tensors = tensors_of(self.model)
        stored = StoredParameters(self.checkpoint, tensors)
        found: dict[str, NDArray[np.float32]] = {}
        for number, tensor in enumerate(tensors):
            found[tensor.name] = np.empty(tensor.shape, np.float32)
            stored.read(number, 0, found[tensor.name])
        return found

    def predict(self, examples: ArrayLike) -> NDArray[np.float32]:
        """Returns the outputs [n, units] for examples [n, *input shape], in the form of the data's files.

        Bytes (uint8) and other numbers are scaled here as for training, a few at a time.

        Raises:
            ConfigurationError: the examples have another shape, the scaling needs training data that are missing, or
                processes of this model are still at another prediction.
            RunFailedError: a process ended, or stays stopped; the message names it. The next call starts all of them
                again.
        """
        (outputs,) = self.predict_each([examples])
        return outputs

    def predict_each(self, parts: Iterable[ArrayLike]) -> Iterator[NDArray[np.float32]]:
        """Yields the outputs of each array of examples in turn: for inputs larger than memory.

        It takes no more parts ahead than its processes can have at work, at most threads + 2; parts of some hundred
        examples keep all of them busy. Raises as `predict`.
        """
        arrays = (fitting(np.asarray(part), self.model.input, "examples") for part in parts)
        return predictions(self.forward, self.trained.loss, self.trained.classes, arrays, self._ready.make)

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Returns `examples, correct, top1, top5, loss, by_group, metric, metric_value` over a split of its data.

        Of a model with another metric than top-1, `correct`, `top1` and `by_group` are None. So is `top5` of a model
        that was trained on targets, or if there are no more than five classes, and `by_group` if examples come in no
        groups.

        Raises:
            ConfigurationError: the data are missing or have no such split.
            RunFailedError: as `predict`.
        """
        data = open_data(self.experiment, data_of(self.experiment, self.search))
        return evaluate(self.trained, self.forward, data, split)

    def close(self) -> None:
        """Ends the processes of this model. It may predict again, which starts them anew."""
        self.forward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _ready(self) -> Ready:
        return as_trained(self.trained, self.search)


def load(
    run: str | Path,
    *,
    checkpoint: str | int = "",
    search: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    partitions: int = 1,
    threads: int | None = None,
    memory: str | None = None,
) -> TrainedModel:
    """Reads a trained model, into this process, or each part of it into a process that holds no other.

    Args:
        run: a run folder, `NAME/NNN`, `NAME` for the newest run with a checkpoint, or a checkpoint folder.
        checkpoint: `best` on the validation part, `last`, or a number; by default the best if there is one, else the
            last.
        search: folders that are searched for the data before those that the experiment names.
        runs: folder of run folders.
        partitions: how many processes hold a part of the model each.
        threads: of each process. By default one of this process, or, in partitions, their share of the cores.
        memory: what each process may use, such as `"2GB"`; by default no limit but the machine's.

    Raises:
        ConfigurationError: there is no such run or checkpoint, the model cannot be cut into so many partitions, or they
            do not fit; the message names the smallest number that does.
        DamagedDataError: a file does not match its checksum. In partitions, shards are checked by the first prediction.
    """
    trained = load_trained(str(run), Path(runs), str(checkpoint))
    return TrainedModel(trained, open_forward(trained, Processes(partitions, threads, memory)), tuple(map(str, search)))
