"""What is compiled ahead is what steps, evaluations and rules use: no more, and nothing is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from adamctl.kernels import backend, needed
from adamctl.model import description as d
from adamctl.model.rule import RULE_NAMES, RuleConfig

pytestmark = pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")

MODELS = {
    "convolutions": d.Model(
        (12, 12, 2),
        (
            d.Conv2D(10, 3, activation="tanh"),
            d.MaxPool2D(2),
            d.Conv2D(20, 3, activation="relu"),
            d.MaxPool2D(3, 1),
            d.Dropout(0.3),
            d.Dense(8, "relu"),
            d.Softmax(3),
        ),
    ),
    "untied": d.Model(
        (12, 12, 2),
        (d.Local2D(3, 3, activation="relu"), d.L2Pool2D(2), d.LocalContrastNorm(3), d.Local2D(3, 3), d.L2Pool2D(2),
         d.LocalContrastNorm(3), d.Logistic(3)),
        "logistic",
    ),
    "probabilities": d.Model((6,), (d.Dense(8, "sigmoid"), d.Softmax(3)), "squared_error"),
    "squared": d.Model((6,), (d.Dense(8, "tanh"), d.Dense(3)), "squared_error"),
    "regression": d.Model((6,), (d.Dense(8, "tanh"), d.Dense(3)), "mean_squared_error"),
    "own loss": d.Model((6,), (d.Dense(8, "tanh"), d.Dense(3)), "tests.losses_for_tests:NativeAbsolute"),
    "own loss of labels": d.Model((6,), (d.Dense(8, "tanh"), d.Dense(3)), "tests.losses_for_tests:NativeMargin"),
}  # fmt: skip

CODE = """
import json, sys
import msgspec, numpy as np
from adamctl.kernels import backend
from adamctl.kernels.step.network import Network
from adamctl.model.description import Model
from adamctl.kernels.compiled.jit import Kernel

made, weighted = set(), len(sys.argv) > 2
model = msgspec.json.decode(sys.argv[1], type=Model)
import adamctl.kernels.layers.convpool as convpool, adamctl.kernels.layers.direct_convolution as direct
for module in (convpool, direct):
    def noted(size, kind, plain=module.panels_with_tiles):
        made.add(f"tiles.{kind}:{size}")
        return plain(size, kind)
    module.panels_with_tiles = noted
network = Network(model, 4)
network.weigh_classes([1.0] * network.shapes[-1].output[0] if weighted else None)
context, random = network.context(), np.random.default_rng(0)
weights = random.standard_normal(network.flat_size).astype(np.float32) * np.float32(0.1)
images, labels = random.random((4, *model.input), np.float32), network.loss.answers_of(4, 3)
network.prepare(context, weights)
for count in (4, 2):
    network.step(context, weights, images[:count], labels[:count])
network.evaluate(context, weights, images, labels)
for name in backend.COMPILED_MODULES:
    module = sys.modules.get(f"adamctl.kernels.compiled.{name}")
    for function, kernel in vars(module).items() if module else ():
        if isinstance(kernel, Kernel) and kernel.is_loaded:
            made.add(f"{name}.{function}")
print(json.dumps(sorted(made)))
"""


@pytest.mark.parametrize(("name", "weighted"), [*((name, False) for name in MODELS), ("squared", True)])
def test_steps_and_evaluations_use_what_is_named_for_their_model(name: str, weighted: bool) -> None:
    model = MODELS[name]
    line = [sys.executable, "-c", CODE, msgspec.json.encode(model).decode(), *(["weighted"] if weighted else [])]
    used = set(json.loads(subprocess.check_output(line, text=True)))
    assert used <= (named := set(needed.step_kernels(model, weighted=weighted)))
    assert named - used <= set(needed.COMMON_KERNELS)  # those are of accruing, which no step here does


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_each_rule_has_kernels_of_its_own_and_those_of_all(rule: str) -> None:
    names = needed.rule_kernels(RuleConfig(rule))
    assert {f"rules.{rule}", f"factors.{rule}", *needed.COMMON_RULE_KERNELS} <= set(names)
    assert "rules.nesterov" in needed.rule_kernels(RuleConfig("momentum", nesterov=True))
    backend.load(names)


def test_a_job_of_vectors_needs_the_kernels_of_commands() -> None:
    assert needed.rule_kernels(RuleConfig("vectors", kept=("g",))) == needed.ROUND_KERNELS


def test_wires_of_sixteen_bits_need_conversions() -> None:
    assert needed.conversion_kernels(("float32", "float32")) == ()
    names = needed.conversion_kernels(("bfloat16", "float32"))
    assert "conversions.feedback_bfloat16" in names
    backend.load(names)


def test_commands_on_vectors_need_what_is_named_for_them() -> None:
    rounds = backend.compiled("rounds")
    made = {f"rounds.{name}" for name, value in vars(rounds).items() if hasattr(value, "is_loaded")}
    assert made | {"rules.address"} == set(needed.ROUND_KERNELS)
    backend.load(needed.ROUND_KERNELS)


def test_warps_need_what_is_named_for_them() -> None:
    warps = backend.compiled("warp")
    made = {f"warp.{name}" for name, value in vars(warps).items() if hasattr(value, "is_loaded")}
    assert made == set(needed.WARP_KERNELS)
    backend.load(needed.WARP_KERNELS)


def test_what_takes_longest_is_compiled_first() -> None:
    assert needed.step_kernels(MODELS["convolutions"])[0] == "direct.backward"


@pytest.mark.parametrize("name", ["losses.none", "none.sums", "tiles.none:3"])
def test_a_kernel_that_there_is_none_of_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"expected the name of a kernel; found '{name}'"):
        backend.load([name])
