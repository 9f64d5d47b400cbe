"""What a failure costs a run, from the times of the protocols and from how busy what is left then is (pure).

Costs are means: a failure finds a batch and a range half done. They are what the simulation finds where it has the same
failure (`adamctl.model.scaling.cluster.Outage`), which a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from adamctl.model.scaling.choosing import Planned
from adamctl.model.scaling.simulation import WAIT_SHARE

Kind: TypeAlias = Literal["worker", "server", "data server", "machine"]


@dataclass(frozen=True)
class FailureTimes:
    """How long it takes until a failure is known and made good.

    Attributes:
        died_s: until a process that has died is known to have: its connections close.
        silent_s: until a machine that says nothing more is given up, G (docs/copies.md).
        takeover_s: from then until another copy serves.
        restart_s: until a process that is started again works.
        asked_again_s: until a data server that does not answer is no longer waited for.
        has_store: parameter servers keep their part on disk.
        checkpoint_examples: that are trained between two checkpoints; None where that is not known.
        copies: of each part of the model.
    """

    died_s: float
    silent_s: float
    takeover_s: float
    restart_s: float
    asked_again_s: float
    has_store: bool = False
    checkpoint_examples: float | None = None
    copies: int = 1


@dataclass(frozen=True)
class FailureCost:
    """What the loss of one costs.

    Attributes:
        noticed_s: until it is known.
        whole_s: until everything is as before.
        lost_examples: that the run is behind then; None where that is not known.
        lost_s: the same in time of the whole run.
        ends_run: the run ends, and goes on from its last checkpoint by command.
    """

    what: Kind
    noticed_s: float
    whole_s: float
    lost_examples: float | None
    lost_s: float | None
    ends_run: bool = False


def failure_costs(planned: Planned, times: FailureTimes) -> Iterator[FailureCost]:
    """Yields what the death of a process of each role costs, and the loss of a machine with one of each."""
    yield _cost(planned, "worker", times.died_s, times.restart_s, _of_worker(planned, times, times.died_s))
    yield _of_server(planned, times, "server", times.died_s)
    if planned.size.data_servers:
        lost = _of_data_server(planned, times, times.died_s)
        yield _cost(planned, "data server", times.died_s, times.restart_s, lost)
    server = _of_server(planned, times, "machine", times.silent_s)
    if server.lost_examples is None:
        yield server
        return
    lost = server.lost_examples + _of_worker(planned, times, times.silent_s)
    if planned.size.data_servers:
        lost += _of_data_server(planned, times, times.asked_again_s)
    whole_s = max(server.whole_s, times.silent_s + times.restart_s)
    yield FailureCost("machine", times.silent_s, whole_s, lost, lost / _rate(planned), server.ends_run)


def slack_s(planned: Planned) -> float:
    """Returns how long replicas go on, on average, without an answer from a server: until their slots are full."""
    work = planned.cluster.work
    between_s = work.batch_s * work.steps_per_push
    if work.keeps_to_steps:
        return 0.0
    is_near = planned.outcome.fetch_age_s <= WAIT_SHARE * between_s
    free = 1 if work.waits_for_fetch and is_near else work.slots
    return (free - 0.5) * between_s


def _of_worker(planned: Planned, times: FailureTimes, noticed_s: float) -> float:
    """A replica's own images, what of a range is trained again, and, in step, everybody's until it is noticed."""
    work, data = planned.cluster.work, planned.cluster.data
    range_batches = data.range_batches if data is not None else 0
    own = _rate(planned) / planned.size.replicas
    again = (range_batches + work.contexts * work.steps_per_push) * work.batch / 2
    others = (_rate(planned) - own) * noticed_s if work.keeps_to_steps else 0.0
    return own * (noticed_s + times.restart_s) + again + others


def _of_server(planned: Planned, times: FailureTimes, what: Kind, noticed_s: float) -> FailureCost:
    """All images while nobody serves its part, but for what free slots hide; then what the others cannot take."""
    if times.copies > 1:
        pause_s = noticed_s + times.takeover_s
        whole_s = max(pause_s, noticed_s + times.restart_s)
        one = planned.outcome
        busy = max(one.server_in_share, one.server_out_share, one.server_loop_share, one.server_cores_share)
        slower = _slower(planned.size.servers, busy)
    elif times.has_store:
        pause_s = whole_s = noticed_s + times.restart_s
        slower = 0.0
    else:
        again = times.checkpoint_examples
        lost = None if again is None else again / 2 + _rate(planned) * (noticed_s + times.restart_s)
        lost_s = None if lost is None else lost / _rate(planned)
        return FailureCost(what, noticed_s, noticed_s + times.restart_s, lost, lost_s, ends_run=True)
    lost = _rate(planned) * (max(pause_s - slack_s(planned), 0.0) + slower * (whole_s - pause_s))
    return FailureCost(what, noticed_s, whole_s, lost, lost / _rate(planned))


def _of_data_server(planned: Planned, times: FailureTimes, noticed_s: float) -> float:
    """What the others cannot take; of the only one all, but for what was read ahead."""
    data, work = planned.cluster.data, planned.cluster.work
    assert data is not None
    if planned.size.data_servers == 1:
        ahead_s = (data.ranges_ahead - 0.5) * data.range_batches * work.batch_s / work.contexts
        return _rate(planned) * max(noticed_s + times.restart_s - ahead_s, 0.0)
    busy = max(planned.outcome.data_decode_share, planned.outcome.data_link_share)
    return _rate(planned) * _slower(planned.size.data_servers, busy) * (noticed_s + times.restart_s)


def _slower(count: int, busy: float) -> float:
    """Returns the share of the speed that is lost while one of so many is missing that are busy so much of the time."""
    if count == 1:
        return 1.0
    return max(1 - (count - 1) / (count * max(busy, 1e-9)), 0.0)


def _cost(planned: Planned, what: Kind, noticed_s: float, restart_s: float, lost: float) -> FailureCost:
    return FailureCost(what, noticed_s, noticed_s + restart_s, lost, lost / _rate(planned))


def _rate(planned: Planned) -> float:
    return planned.outcome.examples_per_s
