"""Adam's ImageNet network in any width and size, and what links its machines: figures 10 and 11 (Adam 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adamctl.bench.figures.paper_machines import ADAM, Core
from adamctl.bench.figures.runs import example, toml_value
from adamctl.bench.namespaces import TCP_SHARE
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.model.description import Model
from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE, Link
from adamctl.model.shapes import infer

FILTERS: Mapping[int, int] = {0: 60, 2: 120, 4: 180, 5: 180, 6: 150}
"""Of the convolutions of `examples/imagenet.toml` and `imagenet_partitioned.toml`, by place."""
SOFTMAX = 13
SIDE, CLASSES = 64, 1_000
"""Of the images and networks that are measured."""
PAPER_SIDE, PAPER_CLASSES = 256, 22_000
"""Adam 4.1."""
LATENCY_S = 100e-6
"""Of a message between the paper's machines: assumed, as in docs/planning.md."""


def settings_of(width: float, side: int = SIDE, classes: int = CLASSES) -> dict[str, Any]:
    """Returns the keys of a network whose convolutions have so many times the maps, and nothing else more."""
    filters = {f"model.layers.{layer}.filters": max(round(count * width), 1) for layer, count in FILTERS.items()}
    return {"model.input": [side, side, 3], **filters, f"model.layers.{SOFTMAX}.units": classes}


def experiment_of(name: str, settings: Mapping[str, Any]) -> Experiment:
    """Returns an example with these keys.

    Raises:
        ConfigurationError: they do not go together.
    """
    overrides = [parse_setting(f"{key}={toml_value(value)}") for key, value in settings.items()]
    return load_experiment(example(name), settings=overrides).experiment


def connections_of(model: Model) -> int:
    """Returns the multiply-adds of one example's way forward, which Adam 4.3.1 counts as connections."""
    return sum(shape.connections for shape in infer(model))


def paper_link(core: Core) -> Link:
    """Returns the link of a machine of Adam's."""
    per_byte_s = TCP_PROCESSOR_S_PER_BYTE / ADAM.core_speed(core)
    return Link(ADAM.link_bytes_per_s * TCP_SHARE, LATENCY_S, per_byte_s)


def said_of_machines(core: Core) -> str:
    """Returns what is assumed of Adam's machines, in words."""
    return (
        f"A core of Adam's machines does {ADAM.core_speed(core):.2f} of one here. {'; '.join(ADAM.sources)}; messages "
        f"take {LATENCY_S * 1e6:g} us: assumed."
    )
