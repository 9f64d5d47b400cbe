"""How many evaluations L-BFGS takes to the losses of SciPy's L-BFGS-B, and how many an iteration.

SciPy has float64 and all vectors at hand; ours has float32 vectors, and numbers of rounds alone. Both keep ten pairs
and begin at the same point, and both losses are computed in float64 by the same function.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from adamctl.bench.sandblaster.problems import Problem, watched
from adamctl.errors import ConfigurationError
from adamctl.kernels.array import Array
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.local import LocalVectors, Objective

PAIRS = 10
SURPLUS = 2.0
"""How many times as many evaluations as SciPy ours may take."""
ABOVE = 1e-5
"""A loss is reached within this part of it: float32 parameters cannot come nearer to some minima."""


class Search(NamedTuple):
    """One problem.

    Attributes:
        loss: the least one of SciPy.
        scipy_evaluations, evaluations: until it was reached; infinite if ours has not.
        iterations, all_evaluations: of ours, without the evaluation at its beginning.
    """

    problem: str
    loss: float
    scipy_evaluations: float
    evaluations: float
    iterations: int
    all_evaluations: int

    @property
    def ratio_vs_scipy(self) -> float:
        return self.evaluations / self.scipy_evaluations

    @property
    def evaluations_per_iteration(self) -> float:
        return self.all_evaluations / max(self.iterations, 1)


def measure_searches(
    problems: Mapping[str, Problem], evaluations: int = 100, progress: Callable[[str], None] = lambda line: None
) -> list[Search]:
    """Has SciPy and ours minimise each problem.

    Args:
        evaluations: of SciPy; ours goes on until it has the same loss, or SURPLUS times as many.

    Raises:
        ConfigurationError: SciPy or scikit-learn is not installed.
    """
    found = []
    for name, make in problems.items():
        progress(f"{name}: {evaluations} evaluations")
        objective, start = make()
        theirs = np.minimum.accumulate(_of_scipy(objective, start, evaluations))
        target = float(theirs[-1]) * (1 + ABOVE)
        losses: list[float] = []
        settings = LBFGSSettings(history=PAIRS, gradient_tolerance=0.0, change_tolerance=0.0)
        vectors = LocalVectors(objective, start)
        outcome = vectors.run(lbfgs, settings, round(evaluations * SURPLUS), on_evaluation=losses.append)
        iterations = int(outcome.state["iteration"])
        found.append(
            Search(
                name, float(theirs[-1]), evaluations_to(theirs, target), evaluations_to(np.array(losses), target),
                iterations, outcome.evaluations - 1,
            )
        )  # fmt: skip
    return found


def evaluations_to(losses: Array, target: float) -> float:
    """Returns the number of the first evaluation whose loss is at most `target`; infinity if there is none."""
    reached = np.flatnonzero(losses <= target)
    return float(reached[0] + 1) if reached.size else float("inf")


def _of_scipy(objective: Objective, start: Array, evaluations: int) -> Array:
    try:
        from scipy.optimize import fmin_l_bfgs_b
    except ImportError:
        raise ConfigurationError(
            "--only evaluations: expected SciPy; found it not installed; pip install scipy, or leave this part out"
        ) from None
    losses: list[float] = []
    fmin_l_bfgs_b(
        watched(objective, losses), start.astype(float), m=PAIRS, factr=0, pgtol=0, maxfun=evaluations,
        maxiter=evaluations,
    )  # fmt: skip
    return np.array(losses[:evaluations])


def evaluations_row(searches: list[Search]) -> dict[str, Any]:
    """Returns what is reported of the comparison with SciPy: the worst problem counts, the median is beside it."""
    ratios = [one.ratio_vs_scipy for one in searches]
    return {"ratio": max(ratios), "median": statistics.median(ratios), "problems": len(searches)}


def per_iteration_row(searches: list[Search]) -> dict[str, Any]:
    """Returns evaluations over iterations, both added up over the problems; the worst problem beside it."""
    evaluations, iterations = sum(one.all_evaluations for one in searches), sum(one.iterations for one in searches)
    worst = max(one.evaluations_per_iteration for one in searches)
    return {"ratio": evaluations / max(iterations, 1), "worst": worst, "iterations": iterations}
