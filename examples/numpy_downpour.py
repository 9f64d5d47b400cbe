"""Least squares on parameter servers from plain NumPy: several processes share one vector and push gradients to it.

Start a controller and a parameter server, then this with the controller's address and a name for the job:

    adamctl controller start --port 7070
    adamctl ps start --controller 127.0.0.1:7070
    python examples/numpy_downpour.py adam://127.0.0.1:7070/least-squares
"""

import argparse
import multiprocessing
import time

import numpy as np

import adamctl as adam

UNKNOWNS, EQUATIONS, BATCH = 200, 20_000, 64


def problem(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """One worker's equations, A x = b with a little noise; x is the same for all."""
    solution = np.random.default_rng(0).standard_normal(UNKNOWNS)
    random = np.random.default_rng(1 + rank)
    rows = random.standard_normal((EQUATIONS, UNKNOWNS))
    return rows, rows @ solution + 0.1 * random.standard_normal(EQUATIONS)


def work(url: str, rank: int, steps: int, lr: float) -> None:
    rows, wanted = problem(rank)
    random = np.random.default_rng(rank)
    with adam.ParameterClient(url) as ps:
        params = ps.register({"x": np.zeros(UNKNOWNS)}, rule=adam.Adagrad(lr))
        for _ in range(steps):
            chosen = random.integers(0, EQUATIONS, BATCH)
            error = rows[chosen] @ params["x"] - wanted[chosen]
            ps.push({"x": rows[chosen].T @ error / BATCH}, examples=BATCH)  # travels while we go on
            params = ps.pull()  # what all workers have done so far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="adam://HOST:PORT/JOB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.5)
    options = parser.parse_args()
    with adam.ParameterClient(options.url) as ps:
        ps.register({"x": np.zeros(UNKNOWNS)}, rule=adam.Adagrad(options.lr))
        context = multiprocessing.get_context("spawn")
        arguments = [(options.url, rank, options.steps, options.lr) for rank in range(options.workers)]
        workers = [context.Process(target=work, args=one) for one in arguments]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SystemExit("a worker failed")
        seconds = time.perf_counter() - started
        x = ps.pull()["x"]
        error = np.abs(x - np.random.default_rng(0).standard_normal(UNKNOWNS)).max()
        print(f"largest error of x: {error:.4f} after {options.workers * options.steps} pushes in {seconds:.1f} s")
        ps.close(end=True)


if __name__ == "__main__":
    main()
