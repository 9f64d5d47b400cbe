"""What a client knows of its servers and of its network, and from when on it is enough."""

from __future__ import annotations

from adamctl.model.protocol import Prices
from adamctl.roles.ps.client.cost_estimate import ADDS_PER_S, PRODUCTS_PER_S, PULL_BYTES_MIN, PULLS_KEPT, Measurements
from adamctl.wire.messages import ServerLoad


def test_nothing_is_priced_before_all_servers_and_the_network_are_known() -> None:
    measured = Measurements()
    assert measured.prices(["a"]) is None
    measured.told("a", ServerLoad(0.5, 0.0, 0.0))
    measured.told("b", None)
    assert measured.prices(["a"]) is None
    measured.pulled(PULL_BYTES_MIN - 1, 1.0)
    measured.pulled(PULL_BYTES_MIN, 0.0)
    assert measured.prices(["a"]) is None
    measured.pulled(PULL_BYTES_MIN, 0.5)
    assert measured.prices(["a", "b"]) is None
    assert measured.prices(["a"]) == Prices(2.0 * PULL_BYTES_MIN, 0.5, PRODUCTS_PER_S, ADDS_PER_S)


def test_the_busiest_server_and_the_work_of_all_count() -> None:
    measured = Measurements()
    measured.told("a", ServerLoad(0.2, 10e9, 1e9))
    measured.told("b", ServerLoad(0.9, 20e9, 2e9))
    measured.pulled(10 << 20, 1.0)
    assert measured.prices(["a", "b"]) == Prices(float(10 << 20), 0.9, 30e9, 3e9)


def test_the_best_of_the_last_pulls_counts() -> None:
    measured = Measurements()
    measured.told("a", ServerLoad(0.0, 1.0, 1.0))
    measured.pulled(8 << 20, 1.0)
    for _ in range(PULLS_KEPT - 1):
        measured.pulled(4 << 20, 1.0)
    prices = measured.prices(["a"])
    assert prices is not None and prices.link_bytes_per_s == 8 << 20
    measured.pulled(4 << 20, 1.0)
    prices = measured.prices(["a"])
    assert prices is not None and prices.link_bytes_per_s == 4 << 20
