"""Many replicas that share parameter servers and data servers, followed event by event (pure; DistBelief 4.1, Adam 3).

A context (a thread of a whole replica, or an open flight of one in partitions) takes batches, computes, pushes, and
goes on; it waits where a worker's thread would: for examples, a free slot, its fetch, or slower replicas. What happens
inside a replica is the cost model's (`adamctl.model.partition.cost`). Chance is drawn from the seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from math import exp, inf, log1p, sqrt
from random import Random

from adamctl.model.scaling.cluster import Cluster, DataWork, Outage, Outcome
from adamctl.model.scaling.pushing import Pushing
from adamctl.model.scaling.station import IN, OUT
from adamctl.model.scaling.supply import Supply

WAIT_SHARE = 0.25
"""`SHARE_MAX` of `adamctl.roles.worker.core.following`, which this tier cannot import; a test compares the two."""
_BEGIN, _COMPUTED, _ANSWERED, _INSTALLED, _DATA, _OUT, _BACK = range(7)
_RUNS, _DEAD = "", "dead"
_RECENT = 0.1


def simulate(
    cluster: Cluster, *, warm: int, counted: int, seed: int = 0, outages: Sequence[Outage] = (), until_s: float = inf
) -> Outcome:
    """Follows a cluster until each context has finished so many pushes on average, or for so long.

    Args:
        warm: pushes of each context that do not count.
        counted: pushes of each context that do.
        until_s: when it ends at the latest.
    """
    return _Run(cluster, seed, outages).outcome(warm, counted, until_s)


class _Run:
    def __init__(self, cluster: Cluster, seed: int, outages: Sequence[Outage]) -> None:
        work = cluster.work
        self._cluster, self._work, self._random = cluster, work, Random(seed)
        speeds = [self._drawn(cluster.spread) for _ in range(cluster.replicas)]
        self._slowness = [sum(speeds) / len(speeds) / speed for speed in speeds]
        count = self._count = cluster.replicas * work.contexts
        self._pushing = Pushing(cluster.server, work, cluster.replicas, self._when_answered, self._when_fetched)
        self._supply = Supply(cluster.data or DataWork(), cluster.replicas, work.batch, work.steps_per_push)
        self._open = [0] * count  # pushes of a context that are not answered
        self._made = [0] * count
        self._trip: list[float | None] = [None] * count  # when a push left that is not in the weights
        self._state = [_RUNS] * count  # what it waits for; nothing while it computes
        self._since_s = [0.0] * count
        self._took = [(0, 0, 0.0)] * count  # the pass of what it computes, how many batches, and since when
        self._left = [work.steps_per_push] * count  # batches until its next push
        self._lives = [0] * cluster.replicas  # how often a replica has died
        self._steps = [0] * cluster.replicas
        self._slowest = 0
        self._dead = [False] * cluster.replicas
        self._rests = [False] * cluster.replicas  # nothing of the pass is left for it
        self._waited = {"data": 0.0, "servers": 0.0, "others": 0.0}
        self._computed_s = self._trip_s = self._mean_trip_s = 0.0
        self._trips = self._answers = self._pushes = self._handled = self._number = 0
        self._finished: list[float] = []
        self._events: list[tuple[float, int, int, int, int]] = []
        for number, one in enumerate(outages):
            self._put(one.from_s, _OUT, number)
            self._put(one.to_s, _BACK, number)
        self._outages = outages

    # --- the loop ----------------------------------------------------------------------------------------------------

    def outcome(self, warm: int, counted: int, until_s: float) -> Outcome:
        work, spacing_s = self._work, self._work.batch_s * self._work.steps_per_push
        for replica in range(self._cluster.replicas):
            self._ask(replica, 0.0)
        for context in range(self._count):
            begins_s = 0.0 if work.keeps_to_steps else self._random.random() * spacing_s
            self._put(begins_s, _BEGIN, context)
        each = self._count * work.steps_per_push
        first = self._follow(warm * each, until_s)
        before = self._totals(first)
        last = self._follow((warm + counted) * each, until_s)
        return self._found(first, last, before)

    def _follow(self, batches: int, until_s: float) -> float:
        """Goes on until so many batches were computed; returns when that is."""
        events, pushing, finished, now_s = self._events, self._pushing, self._finished, 0.0
        while len(finished) < batches:
            at_s = events[0][0] if events else inf
            if pushing.next_s <= at_s:
                if (at_s := pushing.next_s) >= until_s:
                    break
                pushing.step()
            else:
                if at_s >= until_s:
                    break
                self._handle(*heapq.heappop(events))
            self._handled += 1
            now_s = at_s
        return min(until_s, finished[batches - 1] if len(finished) >= batches > 0 else now_s)

    def _handle(self, now_s: float, number: int, kind: int, who: int, count: int) -> None:
        if kind == _COMPUTED:
            self._computed(now_s, who, count)
        elif kind == _ANSWERED:
            self._answered(now_s, who)
        elif kind == _INSTALLED:
            self._installed(now_s, who)
        elif kind == _DATA:
            self._supply.came(who, count)
            self._try_all(now_s, who)
        elif kind == _BEGIN:
            self._begin(now_s, who)
        else:
            self._outage(now_s, self._outages[who], kind == _OUT)

    def _put(self, at_s: float, kind: int, who: int, count: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, kind, who, count))

    # --- a context ---------------------------------------------------------------------------------------------------

    def _begin(self, now_s: float, context: int) -> None:
        """Begins what a context computes until its next push, as far as examples are there, or says what is missing."""
        replica = context // self._work.contexts
        reason, passed, taken = self._why_not(replica, context), 0, 0
        if not reason:
            passed, taken = self._supply.take(replica, self._left[context])
            reason = _RUNS if taken else "data"
        before = self._state[context]
        if before in self._waited:
            self._waited[before] += now_s - self._since_s[context]
        self._state[context], self._since_s[context] = reason, now_s
        if reason:
            if reason == "data" and self._supply.is_over(replica):
                self._rest(now_s, replica)
            return
        if self._rests[replica]:
            self._return(now_s, replica)
        self._ask(replica, now_s)
        self._took[context] = (passed, taken, now_s)
        factor = self._slowness[replica] * self._drawn(self._cluster.jitter)
        self._put(now_s + taken * self._work.batch_s * factor, _COMPUTED, context, self._lives[replica])

    def _why_not(self, replica: int, context: int) -> str:
        work = self._work
        if self._dead[replica]:
            return _DEAD
        if self._open[context] >= work.slots:
            return "servers"
        if self._trip[context] is not None and (work.keeps_to_steps or (work.waits_for_fetch and self._is_near)):
            return "servers"
        ahead = self._steps[replica] - self._slowest + self._left[context]
        if work.staleness_most is not None and ahead > work.staleness_most:
            return "others"
        return _RUNS

    @property
    def _is_near(self) -> bool:
        return self._mean_trip_s <= WAIT_SHARE * self._work.batch_s * self._work.steps_per_push

    def _computed(self, now_s: float, context: int, life: int) -> None:
        work, replica = self._work, context // self._work.contexts
        if life != self._lives[replica]:
            return  # what a dead process had begun is lost
        passed, taken, began_s = self._took[context]
        self._computed_s += now_s - began_s
        self._finished += [now_s] * taken
        self._steps[replica] += taken
        self._left[context] -= taken
        if not self._left[context]:
            self._left[context] = work.steps_per_push
            self._push(now_s, context)
        if self._supply.finished(passed, taken):
            for other in range(self._cluster.replicas):
                self._ask(other, now_s)
        if work.staleness_most is not None and self._steps[replica] - taken == self._slowest:
            self._look_at_the_slowest(now_s)
        self._begin(now_s, context)

    def _push(self, now_s: float, context: int) -> None:
        work = self._work
        self._pushes += 1
        if work.push_bytes or work.fetch_bytes:
            self._made[context] += 1
            self._open[context] += 1
            fetches = self._made[context] % work.pushes_per_fetch == 0
            if fetches and self._trip[context] is None:
                self._trip[context] = now_s
            self._pushing.push(now_s, context)
            if fetches and not work.fetch_follows:
                self._pushing.fetch(now_s, context)

    def _answered(self, now_s: float, context: int) -> None:
        work = self._work
        self._open[context] -= 1
        self._answers += 1
        if work.fetch_follows:
            self._pushing.fetch(now_s, context)
        self._try(now_s, context)

    def _installed(self, now_s: float, replica: int) -> None:
        for context in self._pushing.installed(now_s, replica):
            left_s = self._trip[context]
            if left_s is not None:
                took_s = now_s - left_s
                self._mean_trip_s += (took_s - self._mean_trip_s) * (_RECENT if self._trips else 1.0)
                self._trip_s += took_s
                self._trips += 1
                self._trip[context] = None
            self._try(now_s, context)

    def _try(self, now_s: float, context: int) -> None:
        if self._state[context] in self._waited:
            self._begin(now_s, context)

    def _try_all(self, now_s: float, replica: int) -> None:
        for context in range(replica * self._work.contexts, (replica + 1) * self._work.contexts):
            self._try(now_s, context)

    def _rest(self, now_s: float, replica: int) -> None:
        """A replica with nothing to work on does not hold up the others."""
        if not self._rests[replica] and all(state == "data" for state in self._states(replica)):
            self._rests[replica] = True
            self._at_work_changed(now_s)

    def _return(self, now_s: float, replica: int) -> None:
        """A replica that has rested, or was dead, starts level with the slowest."""
        self._steps[replica] = max(self._steps[replica], self._slowest)
        self._rests[replica] = False
        self._at_work_changed(now_s)

    def _states(self, replica: int) -> list[str]:
        return self._state[replica * self._work.contexts : (replica + 1) * self._work.contexts]

    def _at_work_changed(self, now_s: float) -> None:
        self._pushing.set_parts(now_s, sum(self._at_work()))
        self._look_at_the_slowest(now_s)

    def _at_work(self) -> Iterator[bool]:
        return (not (dead or rests) for dead, rests in zip(self._dead, self._rests, strict=True))

    def _look_at_the_slowest(self, now_s: float) -> None:
        slowest = min((steps for steps, works in zip(self._steps, self._at_work(), strict=True) if works), default=0)
        if slowest > self._slowest:
            self._slowest = slowest
            for context, state in enumerate(self._state):
                if state == "others":
                    self._begin(now_s, context)

    # --- what a context waits for ------------------------------------------------------------------------------------

    def _ask(self, replica: int, now_s: float) -> None:
        for at_s, count in self._supply.ask(replica, now_s):
            self._put(at_s + 2 * self._cluster.latency_s, _DATA, replica, count)

    def _when_answered(self, now_s: float, context: int) -> None:
        self._put(now_s + 2 * self._cluster.latency_s, _ANSWERED, context)

    def _when_fetched(self, now_s: float, replica: int) -> None:
        self._put(now_s + 2 * self._cluster.latency_s, _INSTALLED, replica)

    def _outage(self, now_s: float, outage: Outage, begins: bool) -> None:
        if outage.replica is None:
            if begins:
                self._pushing.station.stop(now_s)
            else:
                self._pushing.station.resume(now_s)
                self._pushing.load = outage.load_after
            return
        replica = outage.replica
        contexts = range(replica * self._work.contexts, (replica + 1) * self._work.contexts)
        self._dead[replica] = begins
        if begins:
            self._lives[replica] += 1
            self._supply.lost(replica, sum(self._took[one][1] for one in contexts if self._state[one] == _RUNS))
            for context in contexts:
                self._state[context], self._left[context] = _DEAD, self._work.steps_per_push
        if begins:
            self._at_work_changed(now_s)
        else:
            self._return(now_s, replica)
            self._ask(replica, now_s)
            for context in contexts:
                self._begin(now_s, context)

    # --- what was found ----------------------------------------------------------------------------------------------

    def _totals(self, now_s: float) -> tuple[float, ...]:
        station, supply, waited = self._pushing.station, self._supply, dict(self._waited)
        for state, since_s in zip(self._state, self._since_s, strict=True):
            if state in waited:
                waited[state] += now_s - since_s
        moved = station.moved(IN), station.moved(OUT), station.busy_s
        return (*moved, supply.decode_s, supply.link_s, self._computed_s, *waited.values())

    def _found(self, first_s: float, last_s: float, before: tuple[float, ...]) -> Outcome:
        work, passed_s = self._work, max(last_s - first_s, 1e-12)
        counted = sum(first_s < at_s <= last_s for at_s in self._finished)
        moved_in, moved_out, busy_s, decode_s, link_s, computed_s, *waited = (
            now - then for now, then in zip(self._totals(last_s), before, strict=True)
        )
        rates = self._cluster.server.rates
        data = (self._cluster.data or DataWork()).servers
        of_contexts = passed_s * self._count
        return Outcome(
            examples_per_s=counted * work.batch / passed_s,
            finished_s=tuple(self._finished),
            compute_share=min(computed_s / of_contexts, 1.0),
            waited_shares={name: one / of_contexts for name, one in zip(self._waited, waited, strict=True)},
            server_in_share=moved_in / rates.link_bytes_per_s / passed_s,
            server_out_share=moved_out / rates.link_bytes_per_s / passed_s,
            server_loop_share=(moved_in * rates.receive_s_per_byte + moved_out * rates.send_s_per_byte) / passed_s,
            server_cores_share=busy_s / rates.cores / passed_s,
            data_decode_share=decode_s / data / passed_s,
            data_link_share=link_s / data / passed_s,
            pushes=self._pushes, applied=self._pushing.applied, answered=self._answers,
            batches_together=self._pushing.applied / max(self._pushing.rounds, 1),
            fetch_age_s=self._trip_s / max(self._trips, 1),
            events=self._handled,
        )  # fmt: skip

    def _drawn(self, deviation: float) -> float:
        """Returns a factor with mean 1 and this standard deviation, above 0 (log-normal)."""
        if not deviation:
            return 1.0
        variance = log1p(deviation * deviation)
        return exp(self._random.gauss(-variance / 2, sqrt(variance)))
