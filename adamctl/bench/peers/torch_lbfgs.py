"""Others' L-BFGS on a perceptron, full batch: PyTorch's with strong Wolfe conditions, SciPy's with PyTorch's gradients.

Runs by its path in any interpreter that has PyTorch, NumPy and, for the second, SciPy; nothing else is imported. Reads
one JSON object per line from stdin and answers each with one on stdout:

    {"do": "load", "images": FILE.npy, "value_max": 255, "labels": FILE.npy, "weights": FILE.npz,
     "weight_decay": 1e-4, "threads": 2}
        -> {"ok": true, "torch_version": "...", "chunk": 60000, "loss": 2.3} or {"ok": false, "error": "..."}
    {"do": "minimise", "with": "torch" or "scipy", "evaluations": 40, "history": 10}
        -> {"losses": [...], "seconds": [...], "processor_s": 12.3} or {"ok": false, "error": "..."}

The loss is the mean cross entropy and weight_decay / 2 times the square of all parameters. A chunk is how many examples
go through the network at once: the fastest of some, tried when the data are loaded. Seconds count from the beginning of
the first evaluation to the end of each; both begin at the weights in the file, which alternate with biases.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

CHUNKS = (1_000, 5_000, 20_000, 1 << 62)
TRIES = 3


class Perceptron:
    """A loss to be minimised, and what its evaluations found and when."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.set_num_threads(request["threads"])
        self.images = torch.from_numpy(np.load(request["images"])).float() / request["value_max"]
        self.labels = torch.from_numpy(np.load(request["labels"]).astype(np.int64))
        arrays = np.load(request["weights"])
        self.start = [torch.from_numpy(arrays[name]) for name in arrays.files]
        self.parameters = [torch.nn.Parameter(one.clone()) for one in self.start]
        self.weight_decay = request["weight_decay"]
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.began_s = 0.0
        self.chunk = min(CHUNKS, key=self._time_of)

    def reset(self) -> None:
        with torch.no_grad():
            for parameter, values in zip(self.parameters, self.start, strict=True):
                parameter.copy_(values)
        self.losses, self.seconds = [], []
        self.began_s = time.perf_counter()

    def evaluate(self) -> float:
        """Returns the loss, and leaves its gradient with the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        examples, total = len(self.labels), 0.0
        for begin in range(0, examples, self.chunk):
            scores = self.images[begin : begin + self.chunk]
            for weight, bias in zip(self.parameters[::2], self.parameters[1::2], strict=True):
                if weight is not self.parameters[0]:
                    scores = torch.relu(scores)
                scores = torch.nn.functional.linear(scores, weight, bias)
            labels = self.labels[begin : begin + self.chunk]
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / examples
            loss.backward()
            total += float(loss.detach())
        if self.weight_decay:
            square = sum((parameter * parameter).sum() for parameter in self.parameters)
            term = self.weight_decay / 2 * square
            term.backward()
            total += float(term.detach())
        self.losses.append(total)
        self.seconds.append(time.perf_counter() - self.began_s)
        return total

    def _time_of(self, chunk: int) -> float:
        """The best of some evaluations, as other programs may disturb one."""
        self.chunk = chunk
        taken_s = []
        for _ in range(TRIES):
            began_s = time.perf_counter()
            self.evaluate()
            taken_s.append(time.perf_counter() - began_s)
        return min(taken_s)


def by_torch(loss: Perceptron, evaluations: int, history: int) -> None:
    optimizer = torch.optim.LBFGS(
        loss.parameters, max_iter=evaluations, max_eval=evaluations, history_size=history, tolerance_grad=0.0,
        tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip
    optimizer.step(loss.evaluate)


def by_scipy(loss: Perceptron, evaluations: int, history: int) -> None:
    from scipy.optimize import fmin_l_bfgs_b

    def at(x: Any) -> tuple[float, Any]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(x.astype(np.float32)), loss.parameters)
        value = loss.evaluate()
        gradient = torch.nn.utils.parameters_to_vector([parameter.grad for parameter in loss.parameters])
        return value, gradient.numpy().astype(float)

    start = torch.nn.utils.parameters_to_vector(loss.start).numpy().astype(float)
    fmin_l_bfgs_b(at, start, m=history, factr=0, pgtol=0, maxfun=evaluations, maxiter=evaluations)


def answer(request: dict[str, Any], built: dict[str, Perceptron]) -> dict[str, Any]:
    try:
        if request["do"] == "load":
            loss = built["now"] = Perceptron(request)
            loss.reset()
            version = torch.__version__
            chunk = min(loss.chunk, len(loss.labels))
            return {"ok": True, "torch_version": version, "chunk": chunk, "loss": loss.evaluate()}
        loss = built["now"]
        loss.reset()
        began_s = time.process_time()
        {"torch": by_torch, "scipy": by_scipy}[request["with"]](loss, request["evaluations"], request["history"])
        spent_s = time.process_time() - began_s
    except Exception as failure:
        return {"ok": False, "error": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}
    return {"losses": loss.losses, "seconds": loss.seconds, "processor_s": spent_s}


def main() -> None:
    built: dict[str, Perceptron] = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), built)), flush=True)


if __name__ == "__main__":
    main()
