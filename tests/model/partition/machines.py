"""Machines whose rates are plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.model.partition.cost import Conditions, Link
from adamctl.model.partition.work import Pushing, Work


@dataclass(frozen=True)
class Even:
    """Everything takes one time for each unit of work; updates cost nothing unless said otherwise."""

    amount_per_s: float = 1e9
    update_per_s: float = float("inf")

    def seconds(self, work: Work, batch: int) -> float:
        return work.amount * batch / self.amount_per_s

    def update_seconds(self, parameters: int) -> float:
        return parameters / self.update_per_s


def conditions(
    *,
    batch: int = 10,
    threads: int = 1,
    flights: int = 2,
    bytes_per_s: float = float("inf"),
    latency_s: float = 0.0,
    steps_per_push: int = 1,
    servers: int = 1,
    memory_bytes: int | None = None,
) -> Conditions:
    pushing = Pushing(batch * steps_per_push, servers)
    link = Link(bytes_per_s, latency_s)
    return Conditions(batch, threads, flights, 4, steps_per_push, pushing, link, memory_bytes)
