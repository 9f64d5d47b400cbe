"""A part of a stage takes the time of the nearest one that was measured."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.partition.rates import Rate, Rates, check_rates
from adamctl.model.partition.work import Work

KIB, MIB = 1 << 10, 1 << 20
RATES = Rates(
    MIB,
    32 * MIB,
    2e9,
    (
        Rate("dense", "100 -> 100", 40 * KIB, 32, 1e9),
        Rate("dense", "100 -> 100", 40 * KIB, 1, 2e8),
        Rate("dense", "4096 -> 4096", 64 * MIB, 32, 4e8),
        Rate("dense", "4096 -> 4096", 16 * MIB, 32, 8e8),
        Rate("conv2d", "8x8x3 -> 6x6x4", 3 * KIB, 32, 5e9),
    ),
)


@pytest.mark.parametrize(
    ("work", "batch", "amount_per_s"),
    [
        (Work("dense", "100 -> 100", 10_000, 20 * KIB), 32, 1e9),
        (Work("dense", "100 -> 100", 10_000, 20 * KIB), 2, 2e8),
        (Work("dense", "4096 -> 4096", 10_000, 60 * MIB), 32, 4e8),
        (Work("dense", "4096 -> 4096", 10_000, 31 * MIB), 32, 8e8),  # nearer to 64 MiB, but in another cache
        (Work("dense", "100 -> 100", 10_000, 50 * MIB), 32, 4e8),  # out of cache, as only that one is
        (Work("dense", "3 -> 9", 10_000, 48 * KIB), 32, 1e9),
        (Work("conv2d", "9x9x3 -> 7x7x4", 10_000, MIB), 1, 5e9),
    ],
)
def test_the_nearest_measurement_counts(work: Work, batch: int, amount_per_s: float) -> None:
    assert RATES.seconds(work, batch) == pytest.approx(10_000 * batch / amount_per_s)


def test_a_kind_that_was_not_measured_has_no_time() -> None:
    with pytest.raises(ConfigurationError, match=r"rates: expected one of local2d; found conv2d, dense\. Measure"):
        RATES.seconds(Work("local2d", "a", 1, 1), 1)


def test_caches_and_updates() -> None:
    assert [RATES.level(size) for size in (MIB, MIB + 1, 32 * MIB, 32 * MIB + 1)] == ["L2", "L3", "L3", "memory"]
    assert RATES.update_seconds(1000) == 5e-7


def test_rates_are_kept_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(RATES), type=Rates) == RATES
    check_rates(RATES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"update_per_s": 0.0}, "expected a finite number above 0 for update_per_s; found 0"),
        ({"stages": (Rate("dense", "a", 1, 1, -1.0),)}, "expected a finite number above 0 for dense; found -1"),
        ({"stages": (Rate("dense", "a", 1, 0, 1.0),)}, "expected a batch of at least 1 for dense; found batch 0"),
    ],
)
def test_rates_that_cannot_be_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_rates(msgspec.structs.replace(RATES, **change))
