"""The network of `benchmarks/asynchrony.py`, trained once by PyTorch on the same archive; prints one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


def network(channels: int, init: str) -> nn.Module:
    layers: list[nn.Module] = []
    for maps in (16, 32, 64):
        layers += [nn.Conv2d(channels, maps, 3, padding=1), nn.ReLU(), nn.Conv2d(maps, maps, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = maps
    layers += [nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)]
    if init == "he":
        for layer in layers:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.xavier_uniform_(layers[-1].weight)
    return nn.Sequential(*layers)


def optimizer(rule: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if rule == "adam":
        return torch.optim.Adam(model.parameters(), lr)
    if rule == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr)
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9 if rule == "momentum" else 0.0)


def factor(progress: float, rise: float = 0.3, initial: float = 0.1, final: float = 0.01) -> float:
    """The one cycle of `adamctl.config.schedule`, two halves of cosines."""
    if progress < rise:
        start, stop, share = initial, 1.0, progress / rise
    else:
        start, stop, share = 1.0, final, (progress - rise) / (1 - rise)
    return stop + (start - stop) * 0.5 * (1 + math.cos(math.pi * share))


def look(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    model.eval()
    with torch.inference_mode():
        scores = torch.cat([model(images[start : start + 500]) for start in range(0, len(images), 500)])
        loss = nn.functional.cross_entropy(scores, labels)
    model.train()
    return float(loss), float((scores.argmax(1) == labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rule", required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="more compete with each other where others work, too")
    parser.add_argument("--init", choices=("torch", "he"), default="torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    archive = np.load(options.data)
    data: dict[str, Any] = {}
    for part in ("train", "test"):
        images = torch.from_numpy(archive[f"x_{part}"].astype(np.float32) / 255).permute(0, 3, 1, 2).contiguous()
        data[part] = (images, torch.from_numpy(archive[f"y_{part}"].astype(np.int64)))
    images, labels = data["train"]
    model = network(images.shape[1], options.init)
    rule = optimizer(options.rule, model, options.lr)
    count, done, losses, top1, spent = len(images), 0, [], 0.0, 0.0
    for _ in range(options.passes):
        began = time.perf_counter()
        order = torch.randperm(count)
        for start in range(0, count, 64):
            chosen = order[start : start + 64]
            for group in rule.param_groups:
                group["lr"] = options.lr * factor(done / (options.passes * count))
            rule.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            rule.step()
            done += len(chosen)
        spent += time.perf_counter() - began
        loss, top1 = look(model, *data["test"])
        losses.append(loss)
    print(json.dumps({"losses": losses, "top1": top1, "images_per_s": done / spent}))


if __name__ == "__main__":
    main()
