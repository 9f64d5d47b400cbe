"""Adam's ImageNet network in several widths, and the links of its machines."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.adam import figure_11
from adamctl.bench.figures.adam.networks import (
    connections_of,
    experiment_of,
    paper_link,
    said_of_machines,
    settings_of,
)
from adamctl.bench.figures.paper_machines import ADAM, Core

CORE = Core(2.5e9, 64, 100e9)


def test_only_convolutions_are_made_wider() -> None:
    narrow, wide = (experiment_of("imagenet_partitioned.toml", settings_of(width)).model for width in (1.0, 2.0))
    changed = [type(one).__name__ for one, other in zip(narrow.layers, wide.layers, strict=True) if one != other]
    assert changed == ["Conv2D"] * 5
    assert connections_of(wide) > 2 * connections_of(narrow)


def test_the_papers_network_has_over_two_billion_connections() -> None:
    model = experiment_of("imagenet.toml", {**settings_of(1.0), **figure_11.PAPER_NETWORK}).model
    assert 2e9 < connections_of(model) < 2.5e9
    assert model.input == (256, 256, 3)


def test_messages_of_the_papers_machines_take_as_much_more_of_a_core_as_it_is_slower() -> None:
    slow, fast = paper_link(CORE), paper_link(Core(1.8e9, 16, 10e9))
    assert slow.bytes_per_s == fast.bytes_per_s < 1.25e9
    assert slow.processor_s_per_byte == pytest.approx(fast.processor_s_per_byte / ADAM.core_speed(CORE))


def test_what_is_assumed_of_them_is_said() -> None:
    assert "does 0.18 of one here. 16 cores of 1.8 GHz" in said_of_machines(CORE)
