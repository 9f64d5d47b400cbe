"""Clients for other frameworks: what is registered, pushed and pulled, against real parameter servers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, NotFiniteError
from adamctl.kernels.rules.make import make_rule
from adamctl.net import shared_memory
from tests.api.cluster_for_tests import TOKEN, client


def nested() -> dict[str, Any]:
    return {
        "layer": {"weight": np.arange(12, dtype=np.float64).reshape(3, 4), "bias": np.array([1, 2, 3])},
        "list": [np.float32(7), (np.ones((2, 1, 3), np.float16),)],
        "long rows": np.arange(2 * 300_000, dtype=np.float32).reshape(2, 300_000),
    }


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(equal(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        pairs = zip(found, expected, strict=True)
        return type(found) is type(expected) and all(equal(one, other) for one, other in pairs)
    assert found.dtype == np.float32 and found.shape == np.shape(expected)
    return bool(np.array_equal(found, expected))


def test_what_is_registered_comes_back_as_it_was_nested_for_the_first_and_for_others(url: str) -> None:
    with client(url) as first, client(url) as second:
        assert equal(first.register(nested(), rule=adam.SGD(0.5)), nested())
        assert equal(second.register(adam_zeros(nested())), nested())
        assert (first.created, second.created) == (True, False)
        assert first.job == second.job == url.rpartition("/")[2]
        first.push({"layer": {"weight": np.ones((3, 4))}, "list": [np.float32(2), None]}, learning_rate=0.25)
        first.wait()
        found = second.pull()
        np.testing.assert_array_equal(found["layer"]["weight"], nested()["layer"]["weight"] - 0.25)
        assert found["list"][0] == 6.5
        np.testing.assert_array_equal(found["layer"]["bias"], [1, 2, 3])
        first.close(end=True)


@pytest.mark.skipif(not shared_memory.SUPPORTED, reason="memory is shared on Linux only")
async def test_servers_on_this_machine_take_and_give_values_in_the_clients_own_memory(url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60) as ps:
        params = await ps.register({"a": np.zeros(1000), "b": np.zeros((50, 20))})
        for _ in range(3):
            await ps.push({"a": np.ones(1000), "b": np.full((50, 20), 2.0)})
        await ps.wait()
        await ps.pull()
        assert params["a"].min() == params["a"].max() == 3 and params["b"].min() == params["b"].max() == 6
        assert ps._servers is not None and set(ps._servers.transports().values()) == {"shared"}


def adam_zeros(arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {key: adam_zeros(value) for key, value in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(adam_zeros(value) for value in arrays)
    return np.zeros_like(arrays)


def test_pulls_go_to_the_registered_arrays_without_a_copy_or_into_given_ones(url: str) -> None:
    with client(url) as ps:
        params = ps.register({"a": np.zeros(5), "b": np.zeros((2, 2))})
        ps.push({"a": np.ones(5), "b": np.full((2, 2), 2.0)})  # no rule: what is pushed is added
        ps.wait()
        assert not params["a"].any()
        pulled = ps.pull()
        assert pulled["a"] is not params["a"] and np.shares_memory(pulled["a"], params["a"])
        np.testing.assert_array_equal(params["a"], 1)
        mine = {"b": np.zeros((2, 2), np.float64)}
        assert ps.pull(into=mine) is mine
        np.testing.assert_array_equal(mine["b"], 2)
        for wrong, words in (({"b": np.zeros(4)}, r"shape \[2, 2\]"), ({"c": np.zeros(1)}, "c: no array of this name")):
            with pytest.raises(ConfigurationError, match=words):
                ps.pull(into=wrong)
        ps.close(end=True)


class Lent:
    """An array of another framework: NumPy sees its memory, or, if it is `copied`, its values."""

    def __init__(self, copied: bool) -> None:
        self.memory, self.copied = np.zeros(3), copied

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.memory.copy() if self.copied else self.memory


def test_a_pull_into_what_numpy_can_only_copy_is_refused_as_nothing_would_come_there(url: str) -> None:
    with client(url) as ps:
        ps.register({"a": np.full(3, 7.0)})
        for into in ([0.0, 0.0, 0.0], (0.0, 0.0, 0.0), Lent(copied=True)):
            expected = rf"a: expected an array that can be written to in place; found a {type(into).__name__}"
            with pytest.raises(ConfigurationError, match=expected):
                ps.pull(into={"a": into})
        lent = Lent(copied=False)
        ps.pull(into={"a": lent})
        assert (lent.memory == 7).all()
        of_memory = np.zeros(6)
        ps.pull(into={"a": memoryview(of_memory)[::2]})
        assert of_memory.tolist() == [7, 0, 7, 0, 7, 0]
        ps.close(end=True)


RULES: tuple[Callable[[], Any], ...] = (
    lambda: adam.SGD(0.1, weight_decay=0.01),
    lambda: adam.Momentum(0.1, 0.8, nesterov=True),
    lambda: adam.Adagrad(0.1),
    lambda: adam.RMSProp(0.01, 0.8),
    lambda: adam.Adam(0.01),
)


@pytest.mark.parametrize("make", RULES)
def test_the_servers_apply_the_rule_with_its_settings_from_the_given_values(url: str, make: Callable[[], Any]) -> None:
    config = make()
    rule = make_rule(config.rule, "numpy")
    weights = np.linspace(-1, 1, 40, dtype=np.float32)
    state = rule.initial_state(40)
    generator = np.random.default_rng(3)
    with client(url) as ps:
        ps.register([weights.reshape(8, 5)], rule=config)
        for step in range(5):
            gradient = generator.standard_normal(40).astype(np.float32)
            ps.push([gradient.reshape(8, 5)])
            if step == 2:
                ps.add([np.full((8, 5), 0.5)])
            rule.apply(weights, weights, state, gradient, config.lr)
            weights += 0.5 if step == 2 else 0
        ps.wait()
        np.testing.assert_allclose(ps.pull()[0].ravel(), weights, rtol=1e-5, atol=1e-6)
        ps.close(end=True)


async def test_of_several_at_once_exactly_one_gives_its_values(url: str) -> None:
    clients = [adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60) for _ in range(6)]
    values = [{"w": np.full((50, 20), float(number)), "b": np.full(3, float(number))} for number in range(6)]
    await asyncio.gather(*(one.connect() for one in clients))
    found = await asyncio.gather(*(one.register(value) for one, value in zip(clients, values, strict=True)))
    (maker,) = [number for number, one in enumerate(clients) if one.created]
    for params in found:
        assert (params["w"] == maker).all() and (params["b"] == maker).all()
    await asyncio.gather(*(one.push({"w": np.ones((50, 20))}) for one in clients))
    await asyncio.gather(*(one.wait() for one in clients))
    assert ((await clients[0].pull())["w"] == maker + 6).all()
    await clients[0].close(end=True)
    await asyncio.gather(*(one.close() for one in clients[1:]))


async def test_the_asynchronous_twin_does_what_the_other_does(url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN) as ps:
        (w,) = await ps.register([np.ones(4)], rule=adam.SGD(1.0))
        await ps.push([w])
        await ps.wait()
        assert not (await ps.pull())[0].any()
        await ps.add([np.ones(4)])
        await ps.wait()
        into = [np.empty(4)]
        assert (await ps.pull(into))[0].all()
        assert ps.rolled_back == 0
        await ps.close(end=True)


def test_a_job_that_is_there_can_be_used_without_knowing_its_arrays(url: str) -> None:
    with client(url) as first, client(url) as second:
        first.register({"x": [np.arange(3), np.float64(2)]}, rule=adam.SGD(1.0))
        found = second.register()
        assert list(found) == ["x.0", "x.1"]
        with pytest.raises(ConfigurationError, match="learning_rate"):
            second.push({"x.0": np.ones(3)})
        second.push({"x.0": np.ones(3)}, 0.5)
        second.wait()
        np.testing.assert_array_equal(first.pull()["x"][0], [-0.5, 0.5, 1.5])
        first.close(end=True)


def test_lent_arrays_are_sent_as_they_are_and_must_be_float32(url: str) -> None:
    with client(url) as ps:
        ps.register([np.zeros(6)])
        with pytest.raises(ConfigurationError, match="C-contiguous float32"):
            ps.push([np.ones(6)], copy=False)
        with pytest.raises(ConfigurationError, match="not contiguous"):
            ps.push([np.ones(12, np.float32)[::2]], copy=False)
        ps.push([np.ones(6, np.float32)], copy=False)
        ps.wait()
        assert (ps.pull()[0] == 1).all()
        ps.close(end=True)


def test_many_pushes_arrive_once_each_however_few_may_be_on_their_way(url: str) -> None:
    with client(url, pushes_max=2) as ps:
        ps.register([np.zeros((64, 64))])
        reused = np.ones((64, 64), np.float32)
        for number in range(100):
            reused[...] = number  # it was copied
            ps.push([reused])
        ps.wait()
        assert (ps.pull()[0] == sum(range(100))).all()
        ps.close(end=True)


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_16_bits_on_the_wire_add_up_to_what_was_pushed(url: str, wire: Any) -> None:
    """Initial values go as they are, and what rounding takes from one push comes with the next."""
    third = np.full(1000, 1 / 3, np.float32)
    step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[wire]
    with client(url, wire_push=wire, wire_pull=wire) as ps:
        given = ps.register({"a": third, "b": np.zeros(3)})
        np.testing.assert_array_equal(given["a"], third)
        with client(url) as other:
            exact = other.register()
            np.testing.assert_array_equal(exact["a"], third)
            for _ in range(30):
                ps.push({"a": 0.01 * third})
            ps.wait()
            total = other.pull()["a"] - third
            np.testing.assert_allclose(total, 0.1, atol=0.01 * step)
            rounded = ps.pull()["a"]
            assert (rounded != exact["a"]).any()
            np.testing.assert_allclose(rounded, exact["a"], rtol=step)
        with pytest.raises(NotFiniteError):
            ps.push({"a": third * np.inf})
        ps.close(end=True)


def test_an_unknown_type_on_the_wire_is_refused_at_once(url: str) -> None:
    expected = "wire_pull: expected dtype float32, bfloat16 or float16; found 'int8'"
    with pytest.raises(ConfigurationError, match=expected):
        client(url, wire_pull="int8")
