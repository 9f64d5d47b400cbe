"""Trains a described model with PyTorch on made-up examples: the peer of `adamctl bench worker --vs torch`.

Runs by its path in any interpreter that has PyTorch; nothing else is imported. Reads one JSON object per line from
stdin and answers each with one on stdout:

    {"do": "build", "model": {...}, "batch": 32, "threads": 2, "channels_last": false, "compile": false}
        -> {"ok": true, "torch_version": "..."} or {"ok": false, "error": "..."}
    {"do": "run", "seconds": 2.0} -> {"examples": ..., "seconds": ...}

A step is what a user writes: zero the gradients, forward, loss, backward, one fused SGD update.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WARM_UP_STEPS = 3
EXAMPLES_BYTES_MAX = 64 << 20


def pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, as adamctl's "same" places them: the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Builder:
    """Turns layer descriptions into modules, keeping the shape [channels, height, width] as it goes."""

    def __init__(self, input_shape: list[int]) -> None:
        self.modules: list[nn.Module] = []
        self.shape = [input_shape[2], input_shape[0], input_shape[1]] if len(input_shape) == 3 else list(input_shape)

    def add(self, layer: dict[str, Any]) -> None:
        build: Callable[[dict[str, Any]], None] | None = getattr(self, f"_{layer['type']}", None)
        if build is None:
            raise ValueError(f"PyTorch has no layer that does what {layer['type']} does")
        build(layer)
        activation = layer.get("activation")
        if activation:
            self.modules.append({"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[activation]())

    def _conv2d(self, layer: dict[str, Any]) -> None:
        kernel, stride = pair(layer["kernel"]), pair(layer.get("stride", 1))
        channels, height, width = self.shape
        padding = (0, 0)
        if layer.get("padding", "valid") == "same":
            down, across = same_padding(height, kernel[0], stride[0]), same_padding(width, kernel[1], stride[1])
            if down[0] == down[1] and across[0] == across[1]:
                padding = (down[0], across[0])
            else:
                self.modules.append(nn.ZeroPad2d((across[0], across[1], down[0], down[1])))
            height, width = height + sum(down), width + sum(across)
        groups = layer.get("groups", 1)
        self.modules.append(nn.Conv2d(channels, layer["filters"], kernel, stride, padding, groups=groups))
        rows, columns = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
        self.shape = [layer["filters"], rows, columns]

    def _maxpool2d(self, layer: dict[str, Any]) -> None:
        size = pair(layer["size"])
        stride = pair(layer.get("stride") or layer["size"])
        self.modules.append(nn.MaxPool2d(size, stride))
        channels, height, width = self.shape
        self.shape = [channels, (height - size[0]) // stride[0] + 1, (width - size[1]) // stride[1] + 1]

    def _dense(self, layer: dict[str, Any]) -> None:
        if len(self.shape) > 1:
            self.modules.append(nn.Flatten())
        features = 1
        for size in self.shape:
            features *= size
        self.modules.append(nn.Linear(features, layer["units"]))
        self.shape = [layer["units"]]

    def _softmax(self, layer: dict[str, Any]) -> None:
        self._dense(layer)  # the loss normalises

    def _logistic(self, layer: dict[str, Any]) -> None:
        self._dense(layer)

    def _dropout(self, layer: dict[str, Any]) -> None:
        self.modules.append(nn.Dropout(layer["rate"]))


class Peer:
    """One model with its optimizer and examples."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.set_num_threads(request["threads"])
        torch.manual_seed(1)
        model = request["model"]
        builder = Builder(model["input"])
        for layer in model["layers"]:
            builder.add(layer)
        module: nn.Module = nn.Sequential(*builder.modules)
        self.batch, channels_last = request["batch"], request["channels_last"]
        images = len(model["input"]) == 3
        if channels_last and images:
            module = module.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, fused=True)
        self.module: Callable[[torch.Tensor], torch.Tensor] = torch.compile(module) if request["compile"] else module
        self.compare = self._loss(model, builder.shape[0])
        height_width = model["input"]
        shape = [self.batch, height_width[2], *height_width[:2]] if images else [self.batch, *height_width]
        bytes_each = 4 * int(torch.tensor(shape).prod())
        count = max(2, min(64, EXAMPLES_BYTES_MAX // bytes_each))
        self.images = [torch.randn(shape) for _ in range(count)]
        if channels_last and images:
            self.images = [batch.to(memory_format=torch.channels_last) for batch in self.images]
        self.labels = [torch.randint(builder.shape[0], [self.batch]) for _ in range(count)]
        self.steps = 0
        for _ in range(WARM_UP_STEPS):
            self.step()

    def _loss(self, model: dict[str, Any], units: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        if model.get("loss", "cross_entropy") == "cross_entropy":
            cross_entropy: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.CrossEntropyLoss()
            return cross_entropy
        compare: nn.Module = nn.BCEWithLogitsLoss() if model["loss"] == "logistic" else nn.MSELoss()

        def against_one_hot(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = compare(outputs, nn.functional.one_hot(labels, units).to(outputs.dtype))
            return loss

        return against_one_hot

    def step(self) -> None:
        place = self.steps % len(self.images)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compare(self.module(self.images[place]), self.labels[place])
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def run(self, seconds: float) -> dict[str, float]:
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.step()
            done += self.batch
        return {"examples": done, "seconds": time.perf_counter() - start}


def answer(request: dict[str, Any], peers: dict[str, Peer]) -> dict[str, Any]:
    if request["do"] == "build":
        peers.clear()
        try:
            peers["now"] = Peer(request)
        except Exception as failure:
            return {"ok": False, "error": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}
        return {"ok": True, "torch_version": torch.__version__}
    return peers["now"].run(request["seconds"])


def main() -> None:
    peers: dict[str, Peer] = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), peers)), flush=True)


if __name__ == "__main__":
    main()
