"""What a push costs in bytes as a gradient and as factors, and which of the two a layer is pushed as (Adam 3.2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout, Tensor, place_buckets

Protocol = Literal["gradient", "factors"]


@dataclass(frozen=True)
class PushBytes:
    """One tensor's share of a push.

    Attributes:
        tensor: its index in the layout.
        servers: how many servers hold a part of it; each of them needs all of the activations.
        gradient_bytes: out x in.
        factors_bytes: k x (out + servers x in); None where the gradient is not such a product (a convolution, a bias).
        protocol: what `auto` chooses.
    """

    tensor: int
    name: str
    servers: int
    gradient_bytes: int
    factors_bytes: int | None
    protocol: Protocol

    @property
    def chosen_bytes(self) -> int:
        return self.gradient_bytes if self.protocol == "gradient" else self.factors_bytes or 0


def has_factors(tensor: Tensor) -> bool:
    """Says whether a tensor's gradient is a product errors.T @ activations: the weights of a dense layer."""
    return len(tensor.shape) == 2


def factors_bytes(tensor: Tensor, examples: int, servers: int) -> int:
    """Returns the bytes of a push of k examples as factors: k * (out + S * in) elements for S servers."""
    return examples * (tensor.shape[0] + servers * tensor.row_size) * ELEMENT_BYTES


def choose_protocol(tensor: Tensor, examples: int, servers: int) -> Protocol:
    """Returns what moves fewer bytes for `examples` examples when `servers` servers hold parts of the tensor."""
    if not has_factors(tensor):
        return "gradient"
    return "factors" if factors_bytes(tensor, examples, servers) < tensor.size * ELEMENT_BYTES else "gradient"


def servers_of_tensors(layout: ParameterLayout, placement: Mapping[int, str]) -> tuple[int, ...]:
    """Returns, per tensor, how many servers hold a part of it, for a placement of buckets (index -> server)."""
    holders: list[set[str]] = [set() for _ in layout.tensors]
    for bucket in layout.buckets:
        for shard in layout.shards_of(bucket):
            holders[shard.tensor].add(placement[bucket.index])
    return tuple(len(servers) for servers in holders)


def bytes_per_push(layout: ParameterLayout, servers: int, examples: int, job: str = "") -> tuple[PushBytes, ...]:
    """Returns the cost of a push of `examples` examples per tensor, buckets placed over `servers` servers.

    Raises:
        ConfigurationError: there are no servers.
    """
    placement = place_buckets(layout, job, [f"ps-{number}" for number in range(servers)])
    return tuple(
        PushBytes(
            index,
            tensor.name,
            holders,
            tensor.size * ELEMENT_BYTES,
            factors_bytes(tensor, examples, holders) if has_factors(tensor) else None,
            choose_protocol(tensor, examples, holders),
        )
        for index, (tensor, holders) in enumerate(
            zip(layout.tensors, servers_of_tensors(layout, placement), strict=True)
        )
    )
