"""The network of `examples/speech_digits.toml`, trained by PyTorch on the same features; prints one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

FINAL = 0.01  # of the rate at the end, as `adamctl.config.schedule` has it


def network(inputs: int, classes: int, units: int) -> nn.Sequential:
    """Four dense layers, begun as ours are: He's normal distribution, the last layer Glorot's."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
        nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
        nn.init.zeros_(layers[-2].bias)
        inputs = units
    layers.append(nn.Linear(units, classes))
    nn.init.xavier_uniform_(layers[-1].weight)
    nn.init.zeros_(layers[-1].bias)
    return nn.Sequential(*layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", type=Path, required=True, help="x_train, y_train, x_test, y_test, groups_test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="more gain nothing at so small a network")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    with np.load(options.archive) as archive:
        examples, labels, held, held_labels, groups = (
            torch.from_numpy(archive[name]) for name in ("x_train", "y_train", "x_test", "y_test", "groups_test")
        )
    model = network(examples.shape[1], int(labels.max()) + 1, options.units)
    optimizer = torch.optim.SGD(model.parameters(), options.lr)
    steps, step, started = options.passes * math.ceil(len(examples) / options.batch), 0, time.perf_counter()
    for _ in range(options.passes):
        order = torch.randperm(len(examples))
        for start in range(0, len(order), options.batch):
            factor = FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = options.lr * factor
            chosen = order[start : start + options.batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(examples[chosen]), labels[chosen]).backward()
            optimizer.step()
            step += 1
    seconds = time.perf_counter() - started
    with torch.inference_mode():
        outputs = torch.log_softmax(torch.cat([model(held[at : at + 4096]) for at in range(0, len(held), 4096)]), 1)
    sums = torch.zeros(int(groups.max()) + 1, outputs.shape[1]).index_add_(0, groups, outputs)
    of_group = torch.zeros(len(sums), dtype=held_labels.dtype).scatter_(0, groups, held_labels)
    result = {
        "top1": float((outputs.argmax(1) == held_labels).double().mean()),
        "group_top1": float((sums.argmax(1) == of_group).double().mean()),
        "examples_per_s": options.passes * len(examples) / seconds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
