"""PyTorch's part of `adamctl bench worker|kernels --vs torch`: trains a described model, and runs single kernels.

Runs by its path in any interpreter that has PyTorch; nothing else is imported. Reads one JSON object per line from
stdin and answers each with one on stdout:

    {"do": "train", "model": {...}, "batch": 32, "threads": 2, "channels_last": false, "compile": false}
    {"do": "kernel", "case": {...}, "threads": 1}
        -> {"ok": true, "torch_version": "..."} or {"ok": false, "error": "..."}
    {"do": "run", "seconds": 2.0}
        -> {"examples": ..., "seconds": ...} after "train", {"calls": ..., "seconds": ...} after "kernel"

A training step is the usual one: zero the gradients, forward, loss, backward, one fused SGD update.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Call = Callable[[], object]
WARM_UP_CALLS = 2
WARM_UP_STEPS = 3
EXAMPLES_BYTES_MAX = 64 << 20


def pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, as in adamctl's "same": the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Builder:
    """Turns layer descriptions into modules, tracking the shape [channels, height, width]."""

    def __init__(self, input_shape: list[int]) -> None:
        self.modules: list[nn.Module] = []
        self.shape = [input_shape[2], input_shape[0], input_shape[1]] if len(input_shape) == 3 else list(input_shape)

    def add(self, layer: dict[str, Any]) -> None:
        build: Callable[[dict[str, Any]], None] | None = getattr(self, f"_{layer['type']}", None)
        if build is None:
            raise ValueError(f"PyTorch has no layer like {layer['type']}")
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


class Training:
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


class KernelBuilder(Builder):
    """Also builds layers that the trained classifiers do not use."""

    def _softmax(self, layer: dict[str, Any]) -> None:
        self._dense(layer)
        self.modules.append(nn.Softmax(1))

    def _l2pool2d(self, layer: dict[str, Any]) -> None:
        size, stride = layer["size"], layer.get("stride") or layer["size"]
        self.modules.append(nn.LPPool2d(2, size, stride))
        height, width = self.shape[1:]
        across, step = (size, stride) if isinstance(size, int) else (size[0], stride[0])
        self.shape = [self.shape[0], (height - across) // step + 1, (width - across) // step + 1]


def layer_call(case: dict[str, Any]) -> Call:
    """Forward, or forward and backward, in the faster of both image layouts."""
    calls = [
        _layer_call(case, channels_last) for channels_last in ((False, True) if len(case["input"]) == 3 else (False,))
    ]
    return min(calls, key=_time_of)


def _time_of(call: Call) -> float:
    call()
    start = time.perf_counter()
    for _ in range(3):
        call()
    return time.perf_counter() - start


def _layer_call(case: dict[str, Any], channels_last: bool) -> Call:
    builder = KernelBuilder(case["input"])
    for layer in case["layers"]:
        builder.add(layer)
    module: nn.Module = nn.Sequential(*builder.modules)
    size = case["input"]
    shape = [size[2], size[0], size[1]] if len(size) == 3 else size
    inputs = torch.randn([case["batch"], *shape]).clamp_(min=0)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)
    wanted = list(module.parameters())
    if case["with_input_error"]:
        inputs.requires_grad_()
        wanted.insert(0, inputs)
    if not case["step"] or not wanted:
        return lambda: module(inputs)
    error = torch.randn_like(module(inputs))
    return lambda: torch.autograd.grad(module(inputs), wanted, error)


def rule_call(case: dict[str, Any]) -> Call:
    """One fused update of one parameter, or a foreach update if there is no fused one."""
    weights = nn.Parameter(torch.randn(case["elements"]))
    weights.grad = torch.randn(case["elements"])
    optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "momentum": lambda parameters, lr, **how: torch.optim.SGD(parameters, lr, momentum=0.9, **how),
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "adam": torch.optim.Adam,
    }
    name = case["rule"]
    if name == "add":
        delta = weights.grad
        data = weights.data
        return lambda: data.add_(delta)
    try:
        optimizer = optimizers[name]([weights], lr=1e-9, fused=True)
    except (TypeError, RuntimeError):
        optimizer = optimizers[name]([weights], lr=1e-9, foreach=True)
    return lambda: optimizer.step()


def conversion_call(case: dict[str, Any]) -> Call:
    values = torch.randn(case["elements"])
    short = values.to({"bfloat16": torch.bfloat16, "float16": torch.float16}[case["converted"]])
    return (lambda: short.copy_(values)) if case["narrow"] else (lambda: values.copy_(short))


def factors_call(case: dict[str, Any]) -> Call:
    """weights += errors^T activations, as one product that adds to its output."""
    weights = torch.randn(case["outputs"], case["inputs"])
    errors, activations = torch.randn(case["examples"], case["outputs"]), torch.randn(case["examples"], case["inputs"])
    return lambda: weights.addmm_(errors.T, activations, alpha=-1e-9)


class Kernel:
    """One call, repeated."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.set_num_threads(request["threads"])
        case = request["case"]
        kinds: dict[str, Callable[[dict[str, Any]], Call]] = {
            "layers": layer_call, "rule": rule_call, "converted": conversion_call, "examples": factors_call,
        }  # fmt: skip
        self.call = next(make for key, make in kinds.items() if key in case)(case)
        for _ in range(WARM_UP_CALLS):
            self.call()

    def run(self, seconds: float) -> dict[str, float]:
        done, start = 0, time.perf_counter()
        while not done or time.perf_counter() - start < seconds:
            self.call()
            done += 1
        return {"calls": done, "seconds": time.perf_counter() - start}


def answer(request: dict[str, Any], built: dict[str, Training | Kernel]) -> dict[str, Any]:
    if request["do"] == "run":
        return built["now"].run(request["seconds"])
    built.clear()
    try:
        built["now"] = Training(request) if request["do"] == "train" else Kernel(request)
    except Exception as failure:
        return {"ok": False, "error": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}
    return {"ok": True, "torch_version": torch.__version__}


def main() -> None:
    torch.manual_seed(1)
    built: dict[str, Training | Kernel] = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), built)), flush=True)


if __name__ == "__main__":
    main()
