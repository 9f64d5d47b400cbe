"""Kernels of the user's own join the compiled step, and are kept by their source."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import sleep
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels import custom_kernel
from adamctl.kernels.backend import installed
from adamctl.kernels.custom_kernel import CustomKernel
from adamctl.kernels.layers.custom import Custom
from adamctl.kernels.native import NativeCall, can_compile
from adamctl.kernels.operation import Operation
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import cut_network, cuts_of
from adamctl.kernels.step.network import Network
from adamctl.model.custom.registry import described
from adamctl.model.custom.resolved import resolved
from adamctl.model.partition.rules import make_plan
from tests.custom_layers import NativeRelu, Neighbours, Relu, relu
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import small_integers

needs_compiler = pytest.mark.skipif("numba" not in installed() or not can_compile(), reason="kernels are compiled")
SOURCE = """import adamctl as adam
@adam.kernel("void(float32[::1])")
def fill(out):
    out[:] = NUMBER
"""


def model_of(*layers) -> adam.Model:
    return adam.Sequential(
        [adam.Conv2D(4, 3), *layers, adam.Conv2D(3, 3), *layers, adam.Dense(5)], (9, 8, 2), "squared_error"
    )


def gradients_of(network: Network, weights, batch: Batch) -> list[np.ndarray]:
    context = network.context()
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    network.step(context, flat, batch.images, batch.labels)
    return [view.copy() for view in context.gradient_views]


@needs_compiler
def test_a_step_with_native_layers_is_one_native_function_and_computes_the_same() -> None:
    model = model_of(NativeRelu(), Neighbours())
    weights, batch = small_integers(model, 3)
    native, plain = Network(model, len(batch.labels)), Network(model, len(batch.labels), "numpy")
    assert native.is_native(np.zeros(native.flat_size, np.float32))
    assert not Network(model_of(Relu()), 4).is_native(np.zeros(native.flat_size, np.float32))
    for found, right in zip(gradients_of(native, weights, batch), gradients_of(plain, weights, batch), strict=True):
        np.testing.assert_array_equal(found, right)


@needs_compiler
@pytest.mark.parametrize("partitions", [2, 3])
def test_so_are_flights_of_partitions(partitions: int) -> None:
    model = model_of(NativeRelu(), Neighbours())
    weights, batch = small_integers(model, 3)
    replica = Replica(cut_network(model, cuts_of(make_plan(model, partitions)), "numba"), len(batch.labels), 1, weights)
    ((gradients, _, _),) = replica.run([batch])
    assert all(member.training(0, len(batch.labels)).is_native for member in replica.members)
    expected = gradients_of(Network(model, len(batch.labels), "numpy"), weights, batch)
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_array_equal(found, right)


@needs_compiler
def test_a_pointwise_layer_adds_its_own_calls_to_the_step_and_nothing_else() -> None:
    operation = Custom(resolved(NativeRelu(), (6, 5, 2)), "native_relu1", "numba")
    inputs, buffers = np.ones((3, 6, 5, 2), np.float32), operation.allocate(3)
    (forward,) = operation.native_forward(3, [], buffers, inputs, np.zeros(2, np.uint32))
    assert isinstance(forward, NativeCall) and forward.kernel is relu
    for argument, array in zip(forward.arguments, (inputs, buffers.output), strict=True):
        assert argument.ctypes.data == array.ctypes.data and argument.size == array.size
    (backward,) = operation.native_backward(3, [], [], buffers, inputs, inputs, True)
    assert np.shares_memory(backward.arguments[-1], buffers.input_error)
    assert operation.native_backward(3, [], [], buffers, inputs, inputs, False) == []


class OnlyNative(NativeRelu):
    def upward(self, part, inputs, parameters, state, out):
        raise AssertionError("numpy is not needed")

    downward = upward


@needs_compiler
def test_batches_of_any_size_and_predictions_use_the_same_kernels() -> None:
    model = adam.Sequential([adam.Dense(4), described(OnlyNative()), adam.Dense(3)], (5,), "squared_error")
    network = Network(model, 4)
    generator = np.random.default_rng(3)
    flat = generator.standard_normal(network.flat_size).astype(np.float32)
    images = generator.standard_normal((3, 5)).astype(np.float32)
    context = network.context()
    network.step(context, flat, images, np.array([0, 1, 2]))
    same = adam.Sequential([adam.Dense(4), NativeRelu(), adam.Dense(3)], (5,), "squared_error")
    plain = Network(same, 4, "numpy")
    expected = plain.predict(plain.context(training=False), flat, images)
    found = network.predict(network.context(training=False), flat, images)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_kernel_is_an_ordinary_function_too() -> None:
    out = np.zeros(3, np.float32)
    relu(np.array([-1, 2, 3], np.float32), out)
    np.testing.assert_array_equal(out, [0, 2, 3])
    assert relu.__name__ == "relu"


def imported_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> ModuleType:
    """Writes modules, and imports the first of them as a new process would."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return importlib.import_module(next(iter(sources)))


def filled(module: ModuleType) -> float:
    out = np.zeros(2, np.float32)
    module.fill(out)
    assert out[0] == out[1]
    return float(out[0])


@needs_compiler
def test_another_source_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept kernel of an older source would compute what the user has changed."""
    for number in (1.0, 2.0):
        source = SOURCE.replace("NUMBER", str(number))
        assert filled(imported_anew(tmp_path, monkeypatch, changing_kernel=source)) == number


@needs_compiler
@pytest.mark.parametrize("call", ["", "()"])
def test_so_is_one_that_has_taken_something_from_another_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    helper = "import numba\n@numba.njit\ndef number(): return {0}\n" if call else "number = {0}\n"
    own = "from taken_from import number\n" + SOURCE.replace("NUMBER", f"number{call}")
    for number in (3.0, 4.0, 3.0):
        module = imported_anew(tmp_path, monkeypatch, taking=own, taken_from=helper.format(number))
        assert filled(module) == number


@needs_compiler
def test_a_kernel_is_kept_as_it_was_when_it_was_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file may be changed before it is compiled; then the code of the old one is not found by the new one."""
    old, new = (SOURCE.replace("NUMBER", number) for number in ("5.0", "6.0"))
    declared = imported_anew(tmp_path, monkeypatch, changed_late=old)
    (tmp_path / "changed_late.py").write_text(new)
    assert filled(declared) == 5
    assert filled(imported_anew(tmp_path, monkeypatch, changed_late=new)) == 6


def test_threads_that_use_a_kernel_first_find_one_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        made = 0

        def custom_kernel(self, *_):
            self.made += 1
            sleep(0.01)  # the others come meanwhile
            return SimpleNamespace(overloads={}, load=lambda: None)

    slow, together = Slow(), Barrier(8)
    monkeypatch.setattr(custom_kernel, "compiled", lambda _: slow)
    own = adam.kernel("void(float32[::1])")(lambda out: None)

    def use(_: int) -> int:
        together.wait()
        own.load()
        return id(own.overloads)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(use, range(8)))) == slow.made == 1


@needs_compiler
def test_what_cannot_be_compiled_is_named() -> None:
    @adam.kernel("void(float32[::1])")
    def wrong(out):
        out[0] = no_such_name  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"kernel tests.kernels.test_custom_kernel.wrong: .*no_such_name"):
        wrong.load()


def test_what_is_no_kernel_or_has_gaps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected a signature"):
        adam.kernel()
    with pytest.raises(ConfigurationError, match=r"declared by @adam.kernel"):
        adam.call(max, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="found argument 1 of shape"):
        adam.call(relu, np.zeros(4, np.float32), np.zeros((4, 4), np.float32)[:, 1])
    assert isinstance(relu, CustomKernel)


class WrongCalls(Relu):
    def native_upward(self, part, inputs, parameters, state, out):
        return relu


@needs_compiler
def test_native_methods_return_calls() -> None:
    operation: Operation = Custom(resolved(WrongCalls(), (4,)), "wrong_calls1", "numba")
    with pytest.raises(CustomError, match=r"native_upward: expected a list of adam.call\(...\), or None"):
        operation.native_forward(2, [], operation.allocate(2), np.zeros((2, 4), np.float32), np.zeros(2, np.uint32))
