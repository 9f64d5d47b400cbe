"""What a replica pushes as factors: by bytes at first, then by what was measured; none goes without a gradient."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from adamctl.config.experiment import TrainConfig
from adamctl.kernels.step.network import Network
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.model.protocol import Prices
from adamctl.roles.ps.client.cost_estimate import Measurements
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.protocol import WEIGH_EVERY_S, WEIGH_RARELY_S, PushProtocol, factor_tensors
from adamctl.roles.worker.replica import Replica
from adamctl.wire.constants import UpdateKind
from tests.tensors import tensor_named

MODEL = Model((28, 28, 1), (Conv2D(20, 5), Dense(400), Softmax(10)))
LAYOUT = build_layout(MODEL, 1)
COPIES = (1,) * len(LAYOUT.tensors)
DENSE, SOFTMAX = LAYOUT.tensors.index(tensor_named(LAYOUT, "dense1.weight")), 4
IDLE = Prices(1e9, 0.0, 50e9, 3e9)
BUSY = Prices(1e10, 0.98, 50e9, 3e9)
log = logging.getLogger("adamctl.test")


def make(applies_locally: bool = True, **train: Any) -> PushProtocol:
    settings = {"batch": 16, "n_push": 2} | train
    return PushProtocol(
        TrainConfig(**settings), dict(enumerate(LAYOUT.tensors)), COPIES, applies_locally=applies_locally, log=log
    )


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("gradient", ()), ("factors", ("dense1.weight", "softmax1.weight")), ("auto", ("dense1.weight",))],
)
def test_factors_are_pushed_where_asked_for_or_where_they_are_smaller(protocol: Any, expected: tuple[str, ...]) -> None:
    chosen = factor_tensors(TrainConfig(batch=16, n_push=2, protocol=protocol), dict(enumerate(LAYOUT.tensors)), COPIES)
    assert tuple(LAYOUT.tensors[index].name for index in chosen) == expected


def test_busy_servers_are_sent_gradients_and_idle_ones_factors_again(caplog: pytest.LogCaptureFixture) -> None:
    protocol = make()
    assert protocol.factors == {DENSE} == set(protocol.kept)
    with caplog.at_level(logging.INFO, "adamctl.test"):
        protocol.weigh(0.0, BUSY)
    assert not protocol.factors
    assert "dense1.weight: pushed as a gradient from now on; the busiest server works 98%" in caplog.text
    protocol.weigh(2 * WEIGH_EVERY_S - 1, IDLE)
    assert not protocol.factors, "not yet weighed again"
    protocol.weigh(2 * WEIGH_EVERY_S + 1, None)
    assert not protocol.factors, "nothing is known"
    protocol.weigh(2 * WEIGH_EVERY_S + 1, IDLE)
    assert protocol.factors == {DENSE}


def test_who_would_go_to_and_fro_changes_ever_more_rarely() -> None:
    protocol, changes, now = make(), 0, 0.0
    while now < 3600.0:
        before = protocol.factors
        protocol.weigh(now, BUSY if before else IDLE)
        changes += protocol.factors != before
        now += 1.0
    assert changes <= 6 + 3600 / WEIGH_RARELY_S + 1


@pytest.mark.parametrize("train", [{"protocol": "factors"}, {"protocol": "gradient"}, {"consistency": "sync"}])
def test_what_was_asked_for_or_must_repeat_is_never_weighed(train: dict[str, Any]) -> None:
    protocol = make(**train)
    before = protocol.factors
    protocol.weigh(0.0, BUSY)
    protocol.weigh(2 * WEIGH_EVERY_S, IDLE)
    assert protocol.fixed and protocol.factors == before


def test_gradients_are_left_out_of_steps_only_if_all_that_is_pushed_can_be_made_of_factors() -> None:
    alone = make(applies_locally=False)
    assert alone.skips_gradients and set(alone.kept) == {DENSE, SOFTMAX} and alone.factors == {DENSE}
    assert not make(applies_locally=True).skips_gradients
    assert not make(applies_locally=False, protocol="gradient").skips_gradients
    wide = build_layout(Model((3000,), (Dense(3000), Softmax(100))), 1)
    train = TrainConfig(batch=500, n_push=1)
    large = PushProtocol(train, dict(enumerate(wide.tensors)), (1,) * len(wide.tensors), applies_locally=False, log=log)
    assert large.factors and not large.skips_gradients, "the factors of the last layer would be many times its gradient"


class Servers:
    """Keeps what is pushed."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.servers, self.measured = ("ps-0",), Measurements()

    def start_push(self, push: Any) -> Any:
        self.pushed.append(push)
        raise ConnectionError("enough")


@pytest.mark.parametrize("multiply_here_max", [0, 10**9])
async def test_a_layer_pushed_as_gradient_gets_the_one_its_steps_left_out(
    multiply_here_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the layers that are smaller as gradients would never be trained under an adaptive rule."""
    monkeypatch.setattr("adamctl.roles.worker.downpour.MULTIPLY_HERE_MAX", multiply_here_max)
    network = Network(MODEL, 16, backend="numpy")
    protocol = make(applies_locally=False)
    replica = Replica(network, LAYOUT, 1, 16, 2, 1, protocol.kept, False)
    generator = np.random.default_rng(3)
    replica.weights[...] = 0.05 * generator.standard_normal(LAYOUT.flat_size)
    context, whole = network.context(), network.context()
    expected = np.zeros(LAYOUT.flat_size, np.float32)
    slot = None
    for _ in range(2):
        images = generator.standard_normal((16, 28, 28, 1), np.float32)
        labels = generator.integers(0, 10, 16).astype(np.int32)
        slot = replica.begin_step(0)
        assert slot is not None
        network.step(context, replica.weight_views, images, labels, protocol.skips_gradients)
        actions = replica.end_step(0, slot, context, 16, 0.1, 0.0)
        network.step(whole, replica.weight_views, images, labels)
        expected += whole.gradient
    servers: Any = Servers()
    failures: list[BaseException] = []
    downpour = Downpour(replica, servers, failures.append, protocol)
    try:
        assert actions.push is not None
        downpour.push(actions.push)
        async with asyncio.timeout(30):
            await downpour.settled()
    finally:
        await downpour.close()
    (push,) = servers.pushed
    kinds = {LAYOUT.tensors[index].name: update.kind for index, update in push.updates.items()}
    assert kinds["dense1.weight"] == UpdateKind.FACTORS and kinds["softmax1.weight"] == UpdateKind.GRADIENT
    for index, wanted in enumerate(network.views(expected)):
        update = push.updates[index]
        found = update.values if update.activations is None else update.values.T @ update.activations
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2e-4, atol=1e-6)
    replica.memory.close()
