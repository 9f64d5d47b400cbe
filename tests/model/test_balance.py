"""Balance of real networks over 2 to 20 servers: what each holds, is asked for, and is sent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from adamctl.config.load import load_experiment
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout, build_layout
from adamctl.model.placement import place_buckets
from adamctl.model.protocol import choose_protocol, servers_of_tensors

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MEAN_MAX = 1.2
SERVERS = range(2, 21)
NAMES = ("speech", "imagenet")


@cache
def network(name: str, servers: int) -> tuple[ParameterLayout, int]:
    """Returns the layout and the examples of one push."""
    experiment = load_experiment(EXAMPLES / f"{name}.toml").experiment
    return build_layout(experiment.model, servers), experiment.train.batch * experiment.train.n_push


@cache
def placement(name: str, servers: int) -> dict[int, str]:
    return place_buckets(network(name, servers)[0], name, [f"ps-{number}" for number in range(servers)])


def spread(amounts: dict[str, int], servers: int) -> float:
    assert len(amounts) == servers, "a server has nothing"
    return max(amounts.values()) * servers / sum(amounts.values())


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("name", NAMES)
def test_no_server_holds_or_sends_out_more_than_its_share(name: str, servers: int) -> None:
    """A pull asks for all that a server holds, so the one is as even as the other; so is a push of gradients."""
    layout, _ = network(name, servers)
    held: dict[str, int] = {}
    for bucket in layout.buckets:
        server = placement(name, servers)[bucket.index]
        held[server] = held.get(server, 0) + bucket.size_bytes
    assert spread(held, servers) <= MEAN_MAX


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("name", NAMES)
def test_no_server_receives_more_than_its_share_of_a_push(name: str, servers: int) -> None:
    """Factors: each server that holds rows of a layer gets their errors and all of the layer's activations."""
    layout, examples = network(name, servers)
    holders = servers_of_tensors(layout, placement(name, servers))
    received: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for bucket in layout.buckets:
        server = placement(name, servers)[bucket.index]
        for shard in layout.shards_of(bucket):
            tensor = layout.tensors[shard.tensor]
            if choose_protocol(tensor, examples, holders[shard.tensor]) == "gradient":
                elements = shard.size
            else:
                elements = examples * (shard.row_stop - shard.row_start)
                if (server, shard.tensor) not in seen:
                    seen.add((server, shard.tensor))
                    elements += examples * tensor.row_size
            received[server] = received.get(server, 0) + elements * ELEMENT_BYTES
    assert spread(received, servers) <= MEAN_MAX
