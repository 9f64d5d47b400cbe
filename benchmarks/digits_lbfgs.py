"""L-BFGS on scikit-learn's digits: the example, and a perceptron beside scikit-learn's `MLPClassifier(solver="lbfgs")`.

scikit-learn has no convolutions, so it is compared on a perceptron of about as many parameters as the example has, with
as many evaluations of the 1,437 training images. Its L2 term is of weights alone, ours of biases, too. Ours runs with
every role on this machine; its seconds are of training, those of scikit-learn are of `fit`, with one BLAS thread or as
many as there are cores, whichever takes less.

    python benchmarks/digits_lbfgs.py [--seeds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import adamctl as adam
from adamctl.bench.script import run_script
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "digits_lbfgs.toml"
UNITS, TRAINING_EXAMPLES = 256, 1437
PERCEPTRON = adam.Sequential([adam.Dense(UNITS, activation="tanh"), adam.Softmax(10)], input_shape=(64,))


def ours(experiment: Experiment, model: adam.Model, seed: int) -> dict[str, Any]:
    """Trains a model with the settings of an experiment, and looks at its last checkpoint."""
    train = experiment.train
    with tempfile.TemporaryDirectory() as runs:
        run = adam.fit(
            model, "digits", optimizer=experiment.optimizer, passes=train.passes, batch=train.batch, seed=seed,
            evaluate_every=train.passes, checkpoint_every=0, runs=runs, quiet=True,
        )  # fmt: skip
        loaded = adam.load(str(run.folder))
        return {
            "cross_entropy": loaded.evaluate("train")["loss"],
            "test_top1": loaded.evaluate("test")["top1"],
            "seconds": run.result["train_seconds"],
            "evaluations": run.result["batch"]["evaluations"],
        }


def scikit_learn(experiment: Experiment, seed: int) -> dict[str, Any]:
    """Trains the perceptron with scikit-learn, until it has evaluated as often; returns the faster of two results."""
    from threadpoolctl import threadpool_limits

    results = []
    for threads in (1, None):
        with threadpool_limits(threads):
            results.append(_fitted(experiment, seed))
    return min(results, key=lambda result: float(result["seconds"]))


def _fitted(experiment: Experiment, seed: int) -> dict[str, Any]:
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    parts = images[:TRAINING_EXAMPLES], labels[:TRAINING_EXAMPLES]
    peer = MLPClassifier(
        (UNITS,), activation="tanh", solver="lbfgs", alpha=experiment.optimizer.weight_decay * TRAINING_EXAMPLES,
        max_iter=experiment.train.passes, max_fun=experiment.train.passes, tol=0.0, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has used up its iterations
        began_s = time.perf_counter()
        peer.fit(*parts)
        seconds = time.perf_counter() - began_s
    return {
        "cross_entropy": log_loss(parts[1], peer.predict_proba(parts[0])),
        "test_top1": peer.score(images[TRAINING_EXAMPLES:], labels[TRAINING_EXAMPLES:]),
        "seconds": seconds,
        "iterations": peer.n_iter_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    experiment = load_experiment(EXAMPLE).experiment
    rows: dict[str, list[dict[str, Any]]] = {"example": [ours(experiment, experiment.model, experiment.seed)]}
    for seed in range(options.seeds):
        rows.setdefault("perceptron", []).append(ours(experiment, PERCEPTRON, seed))
        rows.setdefault("scikit-learn", []).append(scikit_learn(experiment, seed))
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':<14}{'cross-entropy':>15}{'test top-1':>12}{'seconds':>9}   (medians)")
    for name, results in rows.items():
        loss, top1, seconds = (
            statistics.median(result[key] for result in results) for key in ("cross_entropy", "test_top1", "seconds")
        )
        print(f"{name:<14}{loss:>15.6f}{top1:>12.2%}{seconds:>9.2f}")


if __name__ == "__main__":
    run_script(main)
