"""What a cluster of emulated machines is planned to train."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.adam.figure_11 import CORES, experiment
from adamctl.bench.figures.cluster_prediction import predicted
from adamctl.model.scaling.machines import Size
from tests.bench.figures.adam.test_figure_11 import SERVING, rates


def planned(replicas: int, link_bytes_per_s: float | None) -> tuple[float, str]:
    return predicted(experiment(), Size(1, replicas, 1, 1), rates(), SERVING, CORES, link_bytes_per_s)


def test_a_slow_link_binds_and_a_fast_one_does_not() -> None:
    free, slow = planned(2, None), planned(2, 4e5)
    assert free[1] == "compute"
    assert "links" in slow[1]
    assert slow[0] < free[0] / 2


def test_two_replicas_without_a_limit_are_nearly_twice_as_fast_as_one() -> None:
    assert planned(2, None)[0] == pytest.approx(2 * planned(1, None)[0], rel=0.1)


def test_servers_may_have_another_share_than_workers() -> None:
    size = Size(1, 2, 1, 1)
    usual, same, small = (
        predicted(experiment(), size, rates(), SERVING, CORES, None, server_cores=cores)
        for cores in (None, CORES, CORES / 100)
    )
    assert usual == same and small[0] < usual[0]


def test_examples_with_more_bytes_hold_up_a_slow_link() -> None:
    size = Size(1, 1, 1, 1)
    single, wide = (
        predicted(experiment(), size, rates(), SERVING, CORES, 4e5, input_bytes=count)[0] for count in (1, 10_000)
    )
    assert wide < 0.9 * single
