"""Regression on a set that is computed, Friedman's first: ten numbers, of which five matter, and noise of deviation 1.

Source: J. H. Friedman, "Multivariate Adaptive Regression Splines" (1991), 4.3. No function of the inputs has a root
mean squared error below that of the noise.
"""

import numpy as np

import adamctl as adam


def friedman(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs [examples, 10], uniform in [0, 1), and targets [examples, 1]."""
    random = np.random.default_rng(seed)
    x = random.random((examples, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + random.standard_normal(examples))[:, None]


def main(seed: int = 7, runs: str = "runs", quiet: bool = False) -> float:
    (x, y), (test_x, test_y) = friedman(2000, 1), friedman(1000, 2)
    mean, deviation = y.mean(), y.std()  # targets of about 1 are learned fastest
    net = adam.Sequential(
        [adam.Dense(64, activation="tanh"), adam.Dense(64, activation="tanh"), adam.Dense(1)],
        input_shape=(10,),
        loss="mean_squared_error",
    )
    data = (x, (y - mean) / deviation, test_x, (test_y - mean) / deviation)
    optimizer = adam.Momentum(0.02, schedule=adam.Schedule("one_cycle"))
    run = adam.fit(
        net, data, optimizer=optimizer, name="friedman", passes=100, batch=32, evaluate_every=10, seed=seed,
        threads=1, ps=0, runs=runs, quiet=quiet,
    )  # fmt: skip
    found = float(run.result["metric_value"] * deviation)
    print(f"test rmse {found:.3f} in the units of the targets; the noise alone has 1.0; run folder {run.folder}")
    return found


if __name__ == "__main__":
    main()
