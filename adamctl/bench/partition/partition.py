"""Replicas of several partitions against one process with as many threads (Adam 3.2, figure 8).

Rounds alternate, so that all see the same machine state. Each round of a setting is a number of flights that takes
about the wanted time; ratios are of images per second, the median over rounds. Machines may be emulated: with links of
a given rate, a share of a core, or pauses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from adamctl.bench.partition.machines import Machines, emulated
from adamctl.bench.partition.prediction import Prediction
from adamctl.bench.partition.started import Kind, Replica, started
from adamctl.bench.report import make_report
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of, plan_of
from adamctl.errors import ConfigurationError
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rates
from adamctl.net.address import TransportKind
from adamctl.roles.worker.partition.sending import Sent

PACKAGES = ("adamctl", "numpy", "numba")
FIRST_FLIGHTS = 4

Progress = Callable[[str], None]


@dataclass
class Setting:
    """What is measured, and its rounds.

    Attributes:
        link_bytes_per_s: of each partition's link; None: no limit.
        matched: the link is to be that of `Machines.transfer_share`, once compute time is known.
        rates: images per second of each round.
        waiting: share of their time that threads slept, of each round.
    """

    kind: Kind
    link_bytes_per_s: float | None = None
    matched: bool = False
    rates: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        link = "" if self.link_bytes_per_s is None else f", links of {self.link_bytes_per_s / 125e3:.4g} Mbit/s"
        return self.kind.name + link

    @property
    def per_image_s(self) -> list[float]:
        """Seconds per image, of each round."""
        return [1 / rate for rate in self.rates]


def run_partition_benchmark(
    experiment: Experiment,
    partitions: Sequence[int],
    *,
    threads: int,
    batch: int,
    flights: Sequence[int] = (),
    transports: Sequence[TransportKind] = ("shared",),
    machines: Machines | None = None,
    machine_rates: Rates | None = None,
    rounds: int = 5,
    seconds: float = 5.0,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measures and returns the report.

    Args:
        partitions: numbers of partitions, each above 1.
        threads: all threads of a replica, together; each partition has its share, at least one.
        batch: examples of a step.
        flights: open flights; none: as a run has them.
        transports: how partitions reach each other, all on loopback. Machines with links use TCP.
        machines: that are emulated; those with links only inside a namespace (`adamctl.bench.namespaces`).
        machine_rates: of this machine, to predict each setting with; None: nothing is predicted.
        rounds, seconds: how many, and about how long each.
        progress: called before each measurement with its description.

    Raises:
        ConfigurationError: the network cannot be cut like that, or machines cannot be emulated here.
    """
    machines = machines or Machines()
    settings = settings_of(experiment, partitions, threads, flights, transports, machines)
    kinds = list(dict.fromkeys(setting.kind for setting in settings))
    with ExitStack() as stack:
        made = stack.enter_context(emulated(machines, [name for kind in kinds for name in kind.machines()]))
        replicas: dict[Kind, Replica] = {}
        for kind in kinds:
            progress(f"starting {kind.name}")
            replicas[kind] = stack.enter_context(started(experiment, kind, batch, made))
        ran = dict.fromkeys(kinds, 0)

        def run(setting: Setting, count: int, seed: int = 0) -> tuple[float, float, float]:
            ran[setting.kind] += count
            return replicas[setting.kind].run(count, setting.link_bytes_per_s, seed)

        counts = []
        for setting in settings:
            progress(f"timing {setting.name}")
            if setting.matched:
                setting.link_bytes_per_s = _matched_link(experiment, setting, settings, batch, machines, run)
            taken_s = min(run(setting, FIRST_FLIGHTS)[0] for _ in range(2))  # the first ones fill caches
            counts.append(max(round(FIRST_FLIGHTS * seconds / taken_s), 1))
        for number in range(rounds):
            for setting, count in zip(settings, counts, strict=True):
                progress(f"round {number + 1} of {rounds}: {setting.name}")
                took_s, waiting, _ = run(setting, count, number)
                setting.rates.append(count * batch / took_s)
                setting.waiting.append(waiting)
        told = {kind: replica.told() for kind, replica in replicas.items()}
    prediction = None if machine_rates is None else Prediction(experiment, machine_rates, machines, batch)
    sent = {kind: _sent(experiment, kind, batch, ran[kind], *told[kind]) for kind in kinds}
    results = [_result(experiment, setting, settings, batch, sent[setting.kind], prediction) for setting in settings]
    report = make_report("partition", PACKAGES, results)
    report["model"], report["rounds"], report["seconds_per_round"] = experiment.name, rounds, seconds
    return report


def _result(
    experiment: Experiment,
    setting: Setting,
    settings: Sequence[Setting],
    batch: int,
    sent: dict[str, Any],
    prediction: Prediction | None,
) -> dict[str, Any]:
    """Returns a setting's row; `settings` are all that were measured, `sent` what its kind has sent."""
    row = _row(experiment, setting, settings[0], batch) | _compared(experiment, setting, settings, batch) | sent
    if prediction is not None:
        row |= prediction.row(setting.kind, setting.link_bytes_per_s, statistics.median(setting.rates))
    return row


def settings_of(
    experiment: Experiment, partitions: Sequence[int], threads: int, flights: Sequence[int],
    transports: Sequence[TransportKind], machines: Machines,
) -> list[Setting]:  # fmt: skip
    """Returns what is measured: one process, then each number of partitions, first without a limit of links.

    Raises:
        ConfigurationError: links were asked for together with memory or sockets that none goes through, or pauses for
            more of the time than so many partitions have.
    """
    if machines.pauses is not None:
        machines.pauses.check(max(partitions, default=1))
    if machines.have_links and set(transports) - {"tcp"}:
        raise ConfigurationError(
            f"--transport {next(iter(set(transports) - {'tcp'}))}: only TCP goes through links; leave out --transport, "
            "or --link and --transfer-share"
        )
    settings = [Setting(Kind(1, threads, 0, "shared"))]
    for number in partitions:
        own = max(threads // number, 1)
        for open_ in flights or (flights_of(experiment, own),):
            for transport in transports:
                kind = Kind(number, own, open_, transport)
                settings.append(Setting(kind))
                settings += [Setting(kind, link) for link in machines.links_bytes_per_s]
                settings += [Setting(kind, matched=True)] * (machines.transfer_share is not None)
    return settings


Timing = Callable[[Setting, int], tuple[float, float, float]]


def _matched_link(
    experiment: Experiment, setting: Setting, settings: Sequence[Setting], batch: int, machines: Machines, run: Timing
) -> float:
    """Returns the link whose transfer takes the wanted share of compute time, the same for any number of flights."""
    assert machines.transfer_share is not None
    for other in settings:
        if other.matched and other.kind.partitions == setting.kind.partitions and other.link_bytes_per_s is not None:
            return other.link_bytes_per_s
    compute_s = run(Setting(setting.kind), FIRST_FLIGHTS)[2] / FIRST_FLIGHTS / setting.kind.threads
    return busiest_bytes(experiment, setting.kind.partitions, batch) / (machines.transfer_share * compute_s)


def busiest_bytes(experiment: Experiment, partitions: int, batch: int) -> int:
    """Returns what the busiest link carries for a flight, in its busier direction."""
    sent, received = [0] * partitions, [0] * partitions
    for pair in plan_of(experiment, partitions).traffic():
        size = (pair.up_bytes + pair.down_bytes) * batch + pair.flight_bytes
        sent[pair.sender] += size
        received[pair.receiver] += size
    return max(*sent, *received)


def _row(experiment: Experiment, setting: Setting, whole: Setting, batch: int) -> dict[str, Any]:
    kind, link = setting.kind, setting.link_bytes_per_s
    ratios = [rate / other for rate, other in zip(setting.rates, whole.rates, strict=True)]
    return {
        "partitions": kind.partitions,
        "transport": None,
        "link_mbit_per_s": None if link is None else round(link / 125e3, 2),
        "threads_each": kind.threads,
        "flights": kind.flights,
        "batch": batch,
        "images_per_s": round(statistics.median(setting.rates), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "waiting_share": round(statistics.median(setting.waiting), 3),
    }


def _compared(experiment: Experiment, setting: Setting, settings: Sequence[Setting], batch: int) -> dict[str, Any]:
    """Returns the speed over that of the fewest flights, and how much of the transfer is hidden behind compute."""
    kind, found = setting.kind, {}
    like = [
        one
        for one in settings
        if one.kind._replace(flights=0) == kind._replace(flights=0)
        and (one.matched, one.link_bytes_per_s) == (setting.matched, setting.link_bytes_per_s)
    ]
    fewest = min(like, key=lambda one: one.kind.flights)
    if fewest.kind.flights < kind.flights:
        gains = [rate / other for rate, other in zip(setting.rates, fewest.rates, strict=True)]
        found["over_fewest_flights"] = round(statistics.median(gains), 3)
    if setting.link_bytes_per_s is not None:
        free = next(one for one in settings if one.kind == kind and one.link_bytes_per_s is None)
        transfer_s = busiest_bytes(experiment, kind.partitions, batch) / setting.link_bytes_per_s
        shown = [
            (slow - fast) * batch / transfer_s for slow, fast in zip(setting.per_image_s, free.per_image_s, strict=True)
        ]
        found["transfer_share"] = round(transfer_s / (statistics.median(free.per_image_s) * batch), 3)
        found["hidden_share"] = round(1 - statistics.median(shown), 3)
    return found


def _sent(
    experiment: Experiment, kind: Kind, batch: int, ran: int, ways: str, sent_by: Sequence[Sent]
) -> dict[str, Any]:
    """Returns what went between partitions beside what was planned, of all rounds of a replica."""
    sent = Sent(*(sum(column) for column in zip(*sent_by, strict=True))) if sent_by else Sent()
    plan = plan_of(experiment, kind.partitions)
    return {
        "transport": ways or None,
        "planned_bytes_per_flight": planned_bytes(plan, batch, experiment.optimizer.clip_norm is not None),
        "sent_bytes_per_flight": sent.block_bytes / ran if sent.frames else None,
        "framing_share": round(sent.framing_bytes / sent.block_bytes, 5) if sent.block_bytes else None,
    }


def planned_bytes(plan: PartitionPlan, batch: int, clips: bool) -> int:
    """Returns what goes between all partitions for one flight of so many examples.

    The plan does not know whether gradients are clipped: then each partition sends each other one the squared norm of
    every stage.
    """
    edges = sum((one.up_bytes + one.down_bytes) * batch + one.flight_bytes for one in plan.traffic())
    norms = plan.partitions * (plan.partitions - 1) * len(plan.stages) * 8
    return edges + (norms if clips else 0)
