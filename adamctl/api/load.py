"""`load`: reads a trained model back from its run, for use in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adamctl.config.experiment import Experiment
from adamctl.launch.classify import Ready, as_trained, fitting, predict
from adamctl.launch.trained import Trained, data_of, evaluate, load_trained, open_data
from adamctl.model.description import Model


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, as `load` returns it.

    Attributes:
        trained: the model as read, with its checkpoint.
        search: folders that are searched first for its data.
    """

    trained: Trained
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
        """Returns copies of the arrays by name: `dense1.weight` [units, inputs] and so on."""
        network = self.trained.network
        views = network.views(self.trained.parameters)
        return {tensor.name: np.array(view) for tensor, view in zip(network.tensors, views, strict=True)}

    def predict(self, examples: ArrayLike) -> NDArray[np.float32]:
        """Returns the outputs [n, units] for examples [n, *input shape], in the form of the data's files.

        Bytes (uint8) and other numbers are scaled here as for training.

        Raises:
            ConfigurationError: the examples have another shape, or the scaling needs training data that are missing.
        """
        raw = fitting(np.asarray(examples), self.model.input, "examples")
        return predict(self.trained, self._ready.make(raw))

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """Returns `examples, correct, top1, top5, loss, by_group, metric, metric_value` over a split of its data.

        Of a model that was trained on targets, `correct`, `top1`, `top5` and `by_group` are None. `top5` is None if
        there are no more than five classes, `by_group` if examples come in no groups.

        Raises:
            ConfigurationError: the data are missing or have no such split.
        """
        data = open_data(self.experiment, data_of(self.experiment, self.search))
        return evaluate(self.trained, data, split)

    @cached_property
    def _ready(self) -> Ready:
        return as_trained(self.trained, self.search)


def load(
    run: str | Path, *, checkpoint: str | int = "", search: Sequence[str | Path] = (), runs: str | Path = "runs"
) -> TrainedModel:
    """Reads a trained model.

    Args:
        run: a run folder, `NAME/NNN`, `NAME` for the newest run with a checkpoint, or a checkpoint folder.
        checkpoint: `best` on the validation part, `last`, or a number; by default the best if there is one, else the
            last.
        search: folders that are searched for the data before those that the experiment names.
        runs: folder of run folders.

    Raises:
        ConfigurationError: there is no such run or checkpoint.
        DamagedDataError: a file does not match its checksum.
    """
    return TrainedModel(load_trained(str(run), Path(runs), str(checkpoint)), tuple(map(str, search)))
