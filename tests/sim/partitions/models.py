"""Small random networks with random cuts, and experiments that train them, for replicas of partitions."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.mix import step_key
from adamctl.model.description import (
    Activation,
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    LossName,
    MaxPool2D,
    Model,
    Padding,
    Softmax,
)
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.stages import CutAxis, Stage, stages_of
from adamctl.model.shapes import infer

PARTITIONS = (1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9)
CONTEXTS_MAX = 20
"""Partitions times flights, in most seeds: each has programs of its own."""
LARGE = 0.05
BATCHES = (1, 2, 3, 4, 4)
ACTIVATIONS: tuple[Activation | None, ...] = ("relu", "tanh", "sigmoid", None)
EXCHANGED_FROM = 2
"""Units above which the parts of a softmax exchange statistics, in seeds that lower the bound."""


class Setting(NamedTuple):
    """What a seed trains.

    Attributes:
        units_gathered_max: the largest softmax whose outputs are gathered.
        threads: of each member.
        training, validation: examples of each split.
    """

    experiment: Experiment
    units_gathered_max: int
    threads: int
    training: int
    validation: int

    @property
    def flights(self) -> int:
        flights = self.experiment.cluster.flights
        assert isinstance(flights, int)
        return flights


def random_setting(random: Random, seed: int) -> Setting:
    """Returns a network that can be cut as wanted, and how it is trained."""
    partitions = random.choice(PARTITIONS)
    flights_max = 8 if random.random() < LARGE else max(1, min(8, CONTEXTS_MAX // partitions))
    flights, batch = random.randint(1, flights_max), random.choice(BATCHES)
    model, gathered_max, cuts = _random_network(random, partitions)
    range_batches, passes = random.randint(1, 3), random.choice((1, 1, 2))
    training = max(2, min(20, 70 // partitions) // passes) * batch + random.randint(0, batch - 1)
    experiment = Experiment(
        name="partitions",
        model=model,
        seed=seed,
        optimizer=OptimizerConfig(
            lr=random.choice((0.0005, 0.005)), clip_norm=random.choice((None, None, 0.01, 0.3, 3.0))
        ),
        train=TrainConfig(
            passes=passes,
            batch=batch,
            protocol="gradient",  # factors are made by compiled steps, which are not simulated
            n_push=random.choice(("auto", 1, 2, 3)),
            n_fetch=random.choice(("auto", 1, 2, 5)),
            local_lr=random.choice(("auto", "auto", 0.0, 0.002)),
            range_batches=range_batches,
            evaluate_every=random.choice((0.3, 0.5, 1.0)),
            pass_fraction=random.choice((1.0, 1.0, 0.75)),
        ),
        cluster=ClusterConfig(
            workers=partitions * random.choice((1, 1, 1, 2)), partitions=partitions, flights=flights, threads=1
        ),
        partition=cuts,
    )
    validation = random.randint(1, 2 * batch + 1)
    setting = Setting(experiment, gathered_max, random.choice((1, 1, 2, 3)), training, validation)
    return _with_consistency(setting, Random(f"consistency {seed}"))


def _with_consistency(setting: Setting, random: Random) -> Setting:
    """Some replicas have a bound on staleness, others go in step."""
    mode = random.choices(("free", "bounded", "in step"), (9, 2, 3))[0]
    if mode == "free":
        return setting
    experiment, partitions = setting.experiment, setting.experiment.cluster.partitions
    assert isinstance(partitions, int)
    cluster = replace(experiment.cluster, workers=partitions * (random.randint(1, 2) if mode == "in step" else 2))
    if mode == "bounded":
        train = replace(experiment.train, max_staleness=random.randint(1, 3))
        return setting._replace(experiment=replace(experiment, train=train, cluster=cluster))
    train = replace(experiment.train, consistency="sync", n_push="auto", n_fetch="auto", local_lr="auto")
    return setting._replace(experiment=replace(experiment, train=train, cluster=cluster), threads=1)


def _random_network(random: Random, partitions: int) -> tuple[Model, int, dict[str, CutAxis | Cut]]:
    """Returns a model, the most units that are gathered, and its cuts; draws again until the layers fit together."""
    while True:
        model = _random_model(random)
        try:
            infer(model)
            cuts: dict[str, CutAxis | Cut] = {
                stage.name: _random_cut(random, stage, partitions) for stage in stages_of(model)
            }
            make_plan(model, partitions, cuts)
        except ConfigurationError:
            continue
        exchanges = isinstance(model.layers[-1], Softmax) and model.loss == "cross_entropy" and random.random() < 0.4
        return model, EXCHANGED_FROM if exchanges else 4096, cuts


def _random_model(random: Random) -> Model:
    flat = random.random() < 0.25
    layers: list[Layer] = []
    if not flat:
        for _ in range(random.randint(1, 3)):
            layers += _image_layers(random)
    for _ in range(random.randint(1, 2) if flat else random.choice((0, 0, 1))):
        layers.append(Dense(random.randint(1, 9), random.choice(ACTIVATIONS)))
        if random.random() < 0.3:
            layers.append(Dropout(random.choice((0.25, 0.5))))
    units = random.randint(2, 6)
    head, loss = random.choice(_HEADS)
    layers.append(Softmax(units) if head is Softmax else Logistic(units) if head is Logistic else Dense(units))
    shape = (random.randint(3, 9),) if flat else (random.randint(5, 11), random.randint(4, 8), random.randint(1, 2))
    return Model(shape, tuple(layers), loss)


_HEADS: tuple[tuple[type[Layer], LossName], ...] = (
    (Softmax, "cross_entropy"),
    (Softmax, "cross_entropy"),
    (Softmax, "squared_error"),
    (Logistic, "logistic"),
    (Dense, "squared_error"),
)


def _image_layers(random: Random) -> list[Layer]:
    activation, kernel = random.choice(ACTIVATIONS), random.randint(1, 3)
    padding: Padding = "same" if random.random() < 0.5 else "valid"
    match random.randrange(8):
        case 0 | 1 | 2:
            groups = random.choice((1, 1, 2))
            layers: list[Layer] = [
                Conv2D(2 * random.randint(1, 2), kernel, random.choice((1, 1, 2)), padding, activation, groups=groups)
            ]
            if random.random() < 0.5:
                layers.append(MaxPool2D(random.randint(2, 3), random.choice((None, 1, 2))))
            return layers
        case 3:
            return [Local2D(random.randint(1, 3), kernel, 1, padding, activation)]
        case 4:
            return [L2Pool2D(2, random.choice((None, 1)))]
        case 5:
            return [MaxPool2D(2, random.choice((None, 1)))]
        case 6:
            return [LocalContrastNorm(3)]
        case _:
            return [Dropout(random.choice((0.25, 0.5)))]


def _random_cut(random: Random, stage: Stage, partitions: int) -> Cut:
    """Returns a cut with ranges of any size, some of them empty; or all in one partition."""
    if random.random() < 0.12:
        return Cut(whole=random.randrange(partitions))
    axis = random.choice(stage.axes)
    extent = stage.groups if axis == "groups" else stage.extent(axis)
    return Cut(axis, tuple(sorted(random.randint(0, extent) for _ in range(partitions - 1))))


class Examples:
    """What data servers have: each pass in an order of its own."""

    def __init__(self, setting: Setting) -> None:
        experiment = setting.experiment
        self._setting = setting
        generator = np.random.default_rng(experiment.seed)
        self.counts = {"train": setting.training, "test": setting.validation, "validation": 0}
        units = infer(experiment.model)[-1].output[0]
        self._images: dict[str, NDArray[np.float32]] = {}
        self._labels: dict[str, NDArray[np.int32]] = {}
        for split, count in self.counts.items():
            self._images[split] = generator.standard_normal((count, *experiment.model.input)).astype(np.float32)
            self._labels[split] = generator.integers(0, units, count).astype(np.int32)
        self._orders = [generator.permutation(setting.training) for _ in range(experiment.train.passes)]

    def read(
        self, split: str, pass_number: int, start: int, stop: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Returns images and labels of a range, in arrays of its own."""
        if split == "train":
            chosen = self._orders[pass_number][start:stop]
        else:
            chosen = np.arange(start, stop)
        return self._images[split][chosen], self._labels[split][chosen]

    def places(self) -> dict[int, tuple[int, int]]:
        """Returns the key of each batch that may begin at an example -> its pass, -1 in evaluations, and that place."""
        experiment = self._setting.experiment
        passes = [(number, self.counts["train"]) for number in range(experiment.train.passes)]
        passes.append((-1, self.counts["test"]))
        return {step_key(experiment.seed, one, at): (one, at) for one, count in passes for at in range(count)}
