"""The methods that DistBelief compares in figures 4 and 5 (section 5), as trainings on spoken digits (pure).

A replica is one machine, and there is one parameter server. Rates were chosen as `speech_runs` does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from msgspec import structs

from adamctl.config.experiment import Experiment, OptimizerConfig

EXAMPLE = "speech_digits.toml"
MACHINE_CORES, SERVER_CORES = 0.15, 0.3
BATCH = 128
TARGET = 0.91
"""Of frames: what methods are compared by. At 0.9 most are with their first evaluation after the warm start."""
LIMIT_S = 210.0
"""Of training: longer than any method needs to the target, if it gets there."""
PASSES_MOST = 1000
"""More than fit: a run ends at its target, or when its time is over."""
WARM = "warm"
"""The one pass of plain SGD that all others begin with (DistBelief 5)."""

Algorithm = Literal["sgd", "adagrad", "lbfgs"]
EVALUATE_EVERY: Mapping[Algorithm, tuple[float, float]] = {
    "sgd": (0.5, 0.25), "adagrad": (0.5, 0.25), "lbfgs": (2.0, 1.0),
}  # fmt: skip
"""Passes between evaluations, in figure 4 and in figure 5, which needs the moment of the target; of L-BFGS
evaluations of the whole batch."""


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: in the keys of rounds.
        title: in the picture.
        rate: None: a line search finds the length of each step.
        begins_warm: with the parameters that one pass of plain SGD has made.
    """

    name: str
    title: str
    algorithm: Algorithm
    replicas: int
    rate: float | None
    begins_warm: bool = True

    @property
    def machines(self) -> dict[str, float]:
        """Cores of each machine, by node."""
        workers = {f"worker-{number}": MACHINE_CORES for number in range(1, self.replicas + 1)}
        return {**workers, "ps-1": SERVER_CORES}

    @property
    def cores(self) -> float:
        """Of all its machines together."""
        return sum(self.machines.values())

    def with_rate(self, rate: float) -> Method:
        return replace(self, rate=rate)


SGD = Method("sgd", "SGD, 1 replica", "sgd", 1, 0.1, begins_warm=False)
DOWNPOUR = Method("downpour-4", "Downpour, 4 replicas", "sgd", 4, 0.01)
ADAGRAD = Method("adagrad-4", "Downpour with Adagrad, 4 replicas", "adagrad", 4, 0.001)
ADAGRAD_8 = Method("adagrad-8", "Downpour with Adagrad, 8 replicas", "adagrad", 8, 0.001)
LBFGS_8 = Method("lbfgs-8", "Sandblaster L-BFGS, 8 replicas", "lbfgs", 8, None)
METHODS = (SGD, DOWNPOUR, ADAGRAD, ADAGRAD_8, LBFGS_8)
"""Figure 4."""
SEARCHED = "11-26"
"""When the rates above were chosen."""
TRIED: Mapping[str, tuple[float, float, float]] = {
    SGD.name: (0.03, 0.1, 0.3),
    DOWNPOUR.name: (0.003, 0.01, 0.03),
    ADAGRAD.name: (0.0003, 0.001, 0.003),
    ADAGRAD_8.name: (0.0003, 0.001, 0.003),
}
"""Three rates a factor of three apart, of each method that has one."""


def at_replicas(method: Method, replicas: int) -> Method:
    """Returns a method with another number of replicas and the same rate, as a user would go on (figure 5)."""
    family = method.name.rpartition("-")[0]
    plural = "s" * (replicas != 1)
    title = f"{method.title.rpartition(', ')[0]}, {replicas} replica{plural}"
    return replace(method, name=f"{family}-{replicas}", title=title, replicas=replicas)


def experiment_of(base: Experiment, method: Method, evaluate_every: float, **train: Any) -> Experiment:
    """Returns the experiment of a method.

    Args:
        base: the example: data and network.
        evaluate_every: passes between evaluations; of L-BFGS evaluations of the whole batch.
        train: further keys of `train`.
    """
    optimizer = OptimizerConfig(type=method.algorithm)
    steps: dict[str, Any] = {}
    if method.rate is not None:
        optimizer = OptimizerConfig(type=method.algorithm, lr=method.rate)
        steps = {"n_push": 1, "n_fetch": 1}  # as in all experiments of the paper (4.1)
    keys = {"passes": PASSES_MOST, "batch": BATCH, "evaluate_every": evaluate_every, "checkpoint_every": 0.0}
    cluster = structs.replace(base.cluster, workers=method.replicas, threads=1, ps=1, apply_threads=1, store="none")
    return structs.replace(
        base, name=method.name, optimizer=optimizer, train=structs.replace(base.train, **(keys | steps | train)),
        cluster=cluster,
    )  # fmt: skip
