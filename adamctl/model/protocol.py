"""The cost of a push as a gradient and as factors, and the choice between the two for each layer (Adam 3.2.6).

The choice is first by bytes alone; once servers and network are measured, by time (docs/decisions/0012).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from adamctl.model.layout import ParameterLayout, Tensor
from adamctl.model.placement import place_buckets
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WireType, of_factors

Protocol = Literal["gradient", "factors"]

HYSTERESIS = 0.15
"""Share of the cost that a change of protocol must save."""
BUSY_MAX = 0.99
KEPT_BYTES_MAX = 1 << 20
"""Bound on the factors of one tensor in one slot that are kept although its gradient is pushed."""


@dataclass(frozen=True)
class PushBytes:
    """One tensor's share of a push.

    Attributes:
        tensor: its index in the layout.
        servers: how many servers hold a part of it; each of them needs all activations.
        gradient_bytes: out x in elements.
        factors_bytes: k x (out + servers x in) elements; None if the gradient is not such a product (a convolution, a
            bias).
        protocol: the choice of `auto`.
    """

    tensor: int
    name: str
    servers: int
    gradient_bytes: int
    factors_bytes: int | None
    protocol: Protocol


def has_factors(tensor: Tensor) -> bool:
    """Returns whether a tensor's gradient is a product errors.T @ activations: the weights of a dense layer.

    Layers of the user's own have no tensor called `weight`.
    """
    return len(tensor.shape) == 2 and tensor.name.endswith(".weight")


def gradient_bytes(tensor: Tensor, wire: WireType = "float32") -> int:
    """Returns the bytes of a push of a tensor's gradient, sent as `wire`, for any number of examples."""
    return tensor.size * WIRE_ELEMENT_BYTES[wire]


def factors_bytes(tensor: Tensor, examples: int, servers: int, wire: WireType = "float32") -> int:
    """Returns the bytes of a push of k examples as factors: k * (out + S * in) elements for S servers.

    `wire` is the type of gradients on the wire; the type of factors follows from it and may differ.
    """
    return examples * (tensor.shape[0] + servers * tensor.row_size) * WIRE_ELEMENT_BYTES[of_factors(wire)]


def choose_protocol(tensor: Tensor, examples: int, servers: int, wire: WireType = "float32") -> Protocol:
    """Returns the protocol with fewer bytes for `examples` examples when `servers` servers hold parts of the tensor."""
    if not has_factors(tensor):
        return "gradient"
    smaller = factors_bytes(tensor, examples, servers, wire) < gradient_bytes(tensor, wire)
    return "factors" if smaller else "gradient"


def servers_of_tensors(layout: ParameterLayout, placement: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Returns, per tensor, how many servers hold a part of it, for a placement of buckets (index -> server)."""
    holders: list[set[Hashable]] = [set() for _ in layout.tensors]
    for bucket in layout.buckets:
        for shard in layout.shards_of(bucket):
            holders[shard.tensor].add(placement[bucket.index])
    return tuple(len(servers) for servers in holders)


def bytes_per_push(
    layout: ParameterLayout, servers: int, examples: int, job: str = "", wire: WireType = "float32"
) -> tuple[PushBytes, ...]:
    """Returns, per tensor, the cost of a push of `examples` examples, with buckets placed on `servers` servers.

    Raises:
        ConfigurationError: there are no servers.
    """
    placement = place_buckets(layout, job, [f"ps-{number}" for number in range(servers)])
    return tuple(
        PushBytes(
            index,
            tensor.name,
            holders,
            gradient_bytes(tensor, wire),
            factors_bytes(tensor, examples, holders, wire) if has_factors(tensor) else None,
            choose_protocol(tensor, examples, holders, wire),
        )
        for index, (tensor, holders) in enumerate(
            zip(layout.tensors, servers_of_tensors(layout, placement), strict=True)
        )
    )


@dataclass(frozen=True)
class PushCost:
    """The cost of pushing one dense tensor either way.

    Attributes:
        tensor: its index in the layout.
        examples: rows of its factors, k.
        size: its number of elements.
        gradient_bytes, factors_bytes: bytes sent, to all servers together.
    """

    tensor: int
    examples: int
    size: int
    gradient_bytes: int
    factors_bytes: int


@dataclass(frozen=True)
class Prices:
    """Measurements of the network and the servers.

    Attributes:
        link_bytes_per_s: throughput of this client's network.
        busy: share of the time that the busiest server's apply threads work, 0 to 1.
        products_per_s: multiply-adds of factors per second of all servers together.
        adds_per_s: elements of gradients per second that they can apply.
    """

    link_bytes_per_s: float
    busy: float
    products_per_s: float
    adds_per_s: float


def push_costs(
    tensors: Mapping[int, Tensor],
    examples: int,
    copies: Sequence[int],
    wire: WireType = "float32",
) -> list[PushCost]:
    """Returns the costs of dense tensors for `examples` examples; `copies`: how often each sends its activations."""
    return [
        PushCost(
            index,
            examples,
            tensor.size,
            gradient_bytes(tensor, wire),
            factors_bytes(tensor, examples, copies[index], wire),
        )
        for index, tensor in tensors.items()
    ]


def weigh_protocols(costs: Sequence[PushCost], factors: frozenset[int], prices: Prices) -> frozenset[int]:
    """Returns which tensors to push as factors from now on, given the present choice.

    The cost of a push is its time on the network plus the waiting that the servers' work causes: a second of work on a
    server with busy share b adds b / (1 - b) seconds of waiting (the mean of an M/M/1 queue). Factors need fewer bytes
    but k multiply-adds per weight, a gradient only one addition: so idle servers get what is smaller, and busy ones
    what is less work. Load is assumed to follow the choice, as it does when all replicas choose alike, so a choice that
    relieved a server does not look wrong as soon as the server is relieved. A change must save HYSTERESIS.
    """
    best, best_s = factors, _cost_s(costs, factors, factors, prices)
    before_s = best_s
    while True:
        flipped = [best ^ {cost.tensor} for cost in costs]
        priced = [(_cost_s(costs, choice, factors, prices), sorted(choice), choice) for choice in flipped]
        found_s, _, found = min(priced, default=(best_s, [], best))
        if found_s >= best_s:
            break
        best, best_s = found, found_s
    return best if best_s < (1 - HYSTERESIS) * before_s else factors


def _cost_s(costs: Sequence[PushCost], choice: frozenset[int], now: frozenset[int], prices: Prices) -> float:
    """Returns the cost of a push in seconds with `choice` sent as factors, given a load measured with `now`."""
    moved_bytes = sum(cost.factors_bytes if cost.tensor in choice else cost.gradient_bytes for cost in costs)
    work_s = _work_s(costs, choice, prices)
    busy = min(prices.busy * work_s / max(_work_s(costs, now, prices), 1e-12), BUSY_MAX)
    return moved_bytes / prices.link_bytes_per_s + work_s * busy / (1 - busy)


def _work_s(costs: Sequence[PushCost], choice: frozenset[int], prices: Prices) -> float:
    return sum(
        cost.examples * cost.size / prices.products_per_s if cost.tensor in choice else cost.size / prices.adds_per_s
        for cost in costs
    )
