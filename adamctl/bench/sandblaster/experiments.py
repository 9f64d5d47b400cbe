"""The experiments that batch algorithms are measured on, and their files for `adamctl train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout

SHAPES = {"mnist": (28, 28, 1), "digits": (8, 8, 1)}
EXAMPLES = {"mnist": 60_000, "digits": 1_437}
CLASSES = 10
SEED = 1
WEIGHT_DECAY = 1e-4
LBFGS: Mapping[str, Any] = {
    "type": "lbfgs", "history": 10, "weight_decay": WEIGHT_DECAY, "gradient_tolerance": 0.0, "change_tolerance": 0.0,
}  # fmt: skip
DOWNPOUR: Mapping[str, Any] = {"type": "sgd", "lr": 0.01}


@dataclass(frozen=True)
class Workload:
    """A perceptron on images.

    Attributes:
        data: `mnist`, which is looked up in folders with data, or `digits`, which install with scikit-learn.
        hidden: units of each layer between images and classes, rectified.
        batch: examples of a portion.
    """

    data: Literal["mnist", "digits"] = "mnist"
    hidden: tuple[int, ...] = (300,)
    batch: int = 200

    @property
    def name(self) -> str:
        sizes = (prod(SHAPES[self.data]), *self.hidden, CLASSES)
        return f"{self.data} {'-'.join(map(str, sizes))}"

    @property
    def model(self) -> Model:
        return Model(SHAPES[self.data], (*(Dense(units, "relu") for units in self.hidden), Softmax(CLASSES)))

    @property
    def data_config(self) -> DataConfig:
        return DataConfig(format="idx" if self.data == "mnist" else "digits", source=self.data)

    @property
    def examples(self) -> int:
        """Of the whole batch."""
        return EXAMPLES[self.data]

    @property
    def parameters(self) -> int:
        return build_layout(self.model, 1).parameter_count

    def downpour(self) -> Experiment:
        """Returns the same network and batch as Downpour trains them."""
        return Experiment(
            name="downpour",
            model=self.model,
            data=DataConfig(format="idx", source=self.data),
            optimizer=OptimizerConfig(**DOWNPOUR),
            train=TrainConfig(batch=self.batch),
            seed=SEED,
        )

    def toml(self, passes: int, settings: Mapping[str, Any], optimizer: Mapping[str, Any] = LBFGS) -> str:
        """Returns the file of an experiment.

        Args:
            passes: of Downpour; evaluations of a batch algorithm, at most.
            settings: further lines, as key = value under `table.key`.
        """
        tables: dict[str, dict[str, Any]] = {
            "data": {"format": "idx" if self.data == "mnist" else "digits", **self._source()},
            "model": {"input": list(SHAPES[self.data])},
            "optimizer": dict(optimizer),
            "train": {"passes": passes, "batch": self.batch},
            "cluster": {},
        }  # fmt: skip
        for key, value in settings.items():
            table, _, name = key.partition(".")
            tables[table][name] = value
        lines = ['name = "bench"', f"seed = {SEED}"]
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        for units in self.hidden:
            lines += ["[[model.layers]]", 'type = "dense"', f"units = {units}", 'activation = "relu"']
        lines += ["[[model.layers]]", 'type = "softmax"', f"units = {CLASSES}"]
        return "\n".join(lines) + "\n"

    def _source(self) -> dict[str, str]:
        return {"source": self.data} if self.data == "mnist" else {}


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
