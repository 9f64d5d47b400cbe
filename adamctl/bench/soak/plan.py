"""Which fault comes when, and what memory may do: the pure part of a soak."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["kill", "stop", "cut", "blink", "disk full", "controller killed", "controller stopped"]
KINDS: Final[tuple[Kind, ...]] = (
    "kill", "stop", "cut", "blink", "disk full", "controller killed", "controller stopped",
)  # fmt: skip
SERVERS: Final = ("ps-1", "ps-2", "ps-3")
CONTROLLERS: Final = ("controller-1", "controller-2", "controller-3")
NEVER_ENDED: Final = ("ps-1", "controller-1")
"""Processes that no fault ends, so that what grows in them has the whole time to grow."""
LEASES: Final = 2.0
BLINK_SHARE: Final = 0.25
DISK_FULL_S: Final = 6.0
WARM_UP_S: Final = 1200.0
JUDGED_S: Final = 1800.0
"""A shorter time after the warm-up says nothing about hours."""
GROWTH_MIB_PER_HOUR_MAX: Final = 4.0
BIN_S: Final = 60.0


@dataclass(frozen=True)
class Fault:
    """What happens to whom, for how long; a kill has no length."""

    kind: Kind
    node: str
    seconds: float = 0.0


def fault_of(seed: int, number: int, lease_s: float) -> Fault:
    """Returns the fault of this number: all kinds come equally often, in an order that changes, as the seed says."""
    turn, place = divmod(number, len(KINDS))
    order = list(KINDS)
    Random(f"{seed} {turn}").shuffle(order)
    kind, chance = order[place], Random(f"{seed} {turn} {place}")
    mortal = [node for node in SERVERS if node not in NEVER_ENDED]
    match kind:
        case "kill":
            return Fault(kind, chance.choice(mortal))
        case "stop" | "cut":  # for longer than it stays a member: it starts over
            return Fault(kind, chance.choice(mortal), LEASES * lease_s)
        case "blink":
            return Fault(kind, chance.choice(SERVERS), BLINK_SHARE * lease_s)
        case "disk full":
            return Fault(kind, chance.choice(SERVERS), DISK_FULL_S)
        case "controller killed":
            return Fault(kind, chance.choice([node for node in CONTROLLERS if node not in NEVER_ENDED]))
        case _:
            return Fault(kind, chance.choice(CONTROLLERS), LEASES * lease_s)


@dataclass(frozen=True)
class Sample:
    """Memory at one moment. `since_start_s`: since the soak began or was taken up again, the latest of these."""

    at_s: float
    since_start_s: float
    resident_mib: Mapping[str, float]


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns node -> MiB an hour after the warm-up, of nodes with enough samples.

    It is the median of the slopes between all pairs of medians of a minute (Theil 1950, Sen 1968), so that neither a
    restart nor a burst of work decides.
    """
    found: dict[str, float] = {}
    warm = [sample for sample in samples if sample.since_start_s >= WARM_UP_S]
    for node in sorted({node for sample in warm for node in sample.resident_mib}):
        minutes: dict[int, list[float]] = {}
        for sample in warm:
            if node in sample.resident_mib:
                minutes.setdefault(int(sample.at_s // BIN_S), []).append(sample.resident_mib[node])
        points = [(minute * BIN_S / 3600, statistics.median(values)) for minute, values in sorted(minutes.items())]
        if points and (points[-1][0] - points[0][0]) * 3600 >= JUDGED_S:
            found[node] = statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    return found


@dataclass(frozen=True)
class Account:
    """What was pushed: numbers of pushes of ones, each to all of a model."""

    sent: int
    acknowledged: int


def problem_of(values: NDArray[np.float32], base: NDArray[np.float32], account: Account) -> str:
    """Returns what is wrong with a model's values; "" if each holds every acknowledged push once, and none else.

    A push whose outcome nobody learned, as its client was ended, may be in a value or not.
    """
    pushes = values.astype(np.float64) - base
    least, most = float(pushes.min()), float(pushes.max())
    told = f"{account.acknowledged} pushes were acknowledged, {account.sent} sent; values hold {least:g} to {most:g}"
    if least < account.acknowledged:
        return f"acknowledged pushes are lost: {told}"
    if most > account.sent or not np.array_equal(pushes, np.round(pushes)):
        return f"pushes were applied twice, or in part: {told}"
    return ""
