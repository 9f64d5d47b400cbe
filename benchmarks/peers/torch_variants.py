"""Adam's MNIST network (4.3.3) in PyTorch, trained on images that others made: pass by pass, in the order they have.

Runs by its path in any interpreter that has PyTorch. Besides, it imports only `torch_mnist.py`, from its folder. Reads
one JSON object per line from stdin and answers each with one on stdout:

    {"do": "begin", "seed": 1, "passes": 30, "steps": 938, "batch": 64, "lr": 0.1, "threads": 2}
        -> {"torch_version": "..."}
    {"do": "train", "images": FILE.npy, "labels": FILE.npy}
        -> {"seconds": ..., "loss": ...}
    {"do": "test", "images": FILE.npy, "labels": FILE.npy}
        -> {"top1": ...}

Images are [n, 28, 28, 1] float32 as they go to the network. SGD with Nesterov momentum 0.9 under a one-cycle schedule
over all passes, as `torch_mnist.py` does, which says of which choices it is the fastest.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_mnist import accuracy, network


def read(request: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images [n, 1, 28, 28] and labels [n]."""
    images = torch.from_numpy(np.load(request["images"]))
    return images.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(np.load(request["labels"]).astype(np.int64))


class Training:
    """One run: the network, the rule and where in the schedule it is."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.set_num_threads(request["threads"])
        torch.manual_seed(request["seed"])
        self.batch = request["batch"]
        self.model = network()
        self.rule = torch.optim.SGD(
            self.model.parameters(),
            lr=request["lr"],
            momentum=0.9,
            nesterov=True,
            weight_decay=request["weight_decay"],
        )
        steps = request["passes"] * request["steps"]
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.rule, request["lr"], steps, pct_start=0.25)
        self.compare = nn.CrossEntropyLoss()

    def train(self, request: dict[str, Any]) -> dict[str, float]:
        images, labels = read(request)
        begun_s, total = time.perf_counter(), 0.0
        for start in range(0, len(images), self.batch):
            self.rule.zero_grad(set_to_none=True)
            loss = self.compare(self.model(images[start : start + self.batch]), labels[start : start + self.batch])
            loss.backward()
            self.rule.step()
            self.schedule.step()
            total += float(loss.detach()) * len(labels[start : start + self.batch])
        return {"seconds": time.perf_counter() - begun_s, "loss": total / len(images)}

    def test(self, request: dict[str, Any]) -> dict[str, float]:
        images, labels = read(request)
        return {"top1": accuracy(self.model, images, labels)}


def main() -> None:
    training: Training | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if request["do"] == "begin":
            training, answer = Training(request), {"torch_version": torch.__version__}
        else:
            assert training is not None
            answer = training.train(request) if request["do"] == "train" else training.test(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
