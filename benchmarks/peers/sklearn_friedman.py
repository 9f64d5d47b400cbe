"""scikit-learn on Friedman's first set: the network of the example, by `MLPRegressor`, and a linear function.

Started by benchmarks/friedman.py with a file of the same examples: SEED FILE -> {"rmse": ..., "linear": ...}.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor


def main() -> None:
    seed, file = int(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")  # that it has used up its passes
    with np.load(file) as found:
        x, y, test_x, test_y = (found[name] for name in ("x", "y", "test_x", "test_y"))
    mean, deviation = y.mean(), y.std()
    network = MLPRegressor(
        hidden_layer_sizes=(64, 64), activation="tanh", alpha=0, batch_size=32, max_iter=100, tol=0,
        n_iter_no_change=1000, random_state=seed,
    )  # fmt: skip
    network.fit(x, (y[:, 0] - mean) / deviation)
    away = network.predict(test_x) * deviation + mean - test_y[:, 0]
    linear = LinearRegression().fit(x, y).predict(test_x) - test_y
    print(json.dumps({"rmse": float(np.sqrt(np.mean(away**2))), "linear": float(np.sqrt(np.mean(linear**2)))}))


if __name__ == "__main__":
    main()
