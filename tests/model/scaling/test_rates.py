"""Rates of what serves, from a file."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates, check_serving_rates

GOOD = ServingRates(ServerRates("sgd", 0, 1e9, 2e9, 1e10), DataRates(100.0, 784.0, 60000))


def test_rates_survive_a_file() -> None:
    for rates in (GOOD, msgspec.structs.replace(GOOD, data=None)):
        assert msgspec.json.decode(msgspec.json.encode(rates), type=ServingRates) == rates
        check_serving_rates(rates)


@pytest.mark.parametrize("name", ["apply_per_s", "apply_more_per_s", "products_per_s", "state_vectors"])
def test_a_rate_that_cannot_be_is_named(name: str) -> None:
    servers = msgspec.structs.replace(GOOD.servers, **{name: -1})
    with pytest.raises(ConfigurationError, match=name):
        check_serving_rates(msgspec.structs.replace(GOOD, servers=servers))


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_no_rate_is_nothing_or_endless(value: float) -> None:
    data = DataRates(value, 784.0, 60000)
    with pytest.raises(ConfigurationError, match="examples_per_s"):
        check_serving_rates(msgspec.structs.replace(GOOD, data=data))
