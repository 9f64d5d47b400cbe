"""A worker of a simulated batch run: the real core, and what its shell does, without threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.roles.ps.client.delivery import LATER, MOVED
from adamctl.roles.worker.core import bundle_work
from adamctl.roles.worker.core.bundle_work import LOST, BundleWork, Held, Pull
from adamctl.roles.worker.core.example_memory import ExampleMemory
from adamctl.wire.constants import GRADIENT_REFUSED
from adamctl.wire.messages import AccumulateRequest, NextBundlesReply, NextBundlesRequest, PullRequest
from tests.sim.engine import ViolationError
from tests.sim.sandblaster.cluster import Ask
from tests.sim.sandblaster.servers import JOB, Call

if TYPE_CHECKING:
    from tests.sim.sandblaster.scenario import SandblasterScenario

PAUSE_S, RETRY_S = 0.02, 1.0
READ_S = 0.01


class SimWorker:
    """One process of one thread. `speed`: 1 for a usual one."""

    def __init__(self, scenario: SandblasterScenario, name: str, incarnation: int, speed: float) -> None:
        self.scenario, self.cluster, self.world = scenario, scenario.cluster, scenario.world
        self.key, self.speed, self.alive = (name, incarnation), speed, True
        self.work = BundleWork(1, ExampleMemory(1, scenario.problem.examples // 2))
        self.stopped_until_s = 0.0
        self._x = np.zeros(scenario.problem.size, np.float32)
        self._asking = False
        self.over = False

    def lives(self) -> bool:
        return self.alive

    def ask(self) -> None:
        """Reports, and asks for bundles: one request at a time."""
        if not self.alive or self.over or self._asking:
            return
        if self._stands_still(self.ask):
            return
        reports, lost = self.work.take_reports()
        message = NextBundlesRequest(*self.key, self.work.wanted, 0.0, reports, lost)
        self._asking, coordinator = True, self.scenario.coordinator
        delay = self.scenario.delay_s

        def reply(answer: NextBundlesReply) -> None:
            self.world.after(delay(), partial(self._told, answer))

        self.world.after(delay(), lambda: coordinator.next_bundles(message, reply))

    def _told(self, answer: NextBundlesReply) -> None:
        self._asking = False
        if not self.alive:
            return
        if answer.ended:
            self.over = True
            return
        self.work.take(answer)
        self.advance()
        self.world.after(PAUSE_S, self.ask)

    def advance(self) -> None:
        work = self.work
        work.memory.take_dropped()
        for span in work.take_reads():
            self.world.after(READ_S * self.world.random.random(), partial(self._arrived, span))
        pull = work.to_pull()
        if pull is not None:
            self._pull(pull)
        for held in work.to_compute():
            self.world.after(self._compute_s(held), partial(self._computed, held, self._x.copy()))

    def _arrived(self, span: Any) -> None:
        if self.alive:
            self.work.arrived(span)
            self.advance()

    def _stands_still(self, action: Any) -> bool:
        wait_s = self.stopped_until_s - self.world.now_s
        if wait_s > 0.0:
            self.world.after(wait_s + 0.001, action)
        return wait_s > 0.0

    # --- parameters ---------------------------------------------------------------------------------------------------

    def _pull(self, pull: Pull) -> None:
        into, lost = np.full_like(self._x, np.nan), set[int]()

        def make(epochs: dict[int, int]) -> tuple[Call, type]:
            shards = tuple(index for bucket in epochs for index in self.cluster.shards(bucket))
            request = PullRequest(JOB, epochs, shards, vector=pull.at, evaluation=pull.evaluation)
            now_s = self.world.now_s
            return lambda server, token, wire: server.core.pull(token, wire, self.key, request, now_s), PullRequest

        def take(answer: Any, asked: set[int]) -> set[int]:
            message, values = answer
            left, again = iter(values), set[int]()
            for part in message.parts:
                bucket = self.cluster.layout.bucket_of_shard[part.shard]
                if not part.code:
                    piece = self.scenario.problem.pieces[part.shard]
                    into[piece.start : piece.stop] = next(left)
                elif part.code in LOST:
                    lost.add(bucket)
                else:
                    again.add(bucket)
            return asked - again

        def done() -> None:
            if lost:
                self.work.pull_refused(sorted(lost))
            else:
                self.scenario.pulled(pull, into)
                self._x = into
                self.work.pulled()
            self.advance()

        Ask(self.cluster, self.key[0], self.cluster.buckets, make, take, done, self.lives)

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _compute_s(self, held: Held) -> float:
        return 0.01 * (held.task.stop - held.task.start) / self.speed * (0.5 + self.world.random.random())

    def _computed(self, held: Held, x: np.ndarray[Any, Any]) -> None:
        if not self.alive or self._stands_still(partial(self._computed, held, x)):
            return
        problem, task = self.scenario.problem, held.task
        loss, total = 0.0, np.zeros(problem.size, np.float32)
        for start, stop, share in bundle_work.portions_of(task, problem.portion):
            found, gradient = problem.portion_gradient(x, task.start + start, task.start + stop)
            loss += found
            total += np.float32(share) * gradient
        if self.work.computed(held, loss, 0.0, 0.0):
            self._push(held, total)
        self.advance()

    def _push(self, held: Held, gradient: np.ndarray[Any, Any]) -> None:
        name, refused = held.task.name, dict[int, int]()
        weight = bundle_work.weight_of(held.task, self.scenario.problem.portion)
        left = set(range(len(self.cluster.layout.shards)))

        def make(epochs: dict[int, int]) -> tuple[Call, type]:
            shards = tuple(index for bucket in epochs for index in self.cluster.shards(bucket) if index in left)
            pieces = [self.scenario.problem.pieces[index] for index in shards]
            body = b"".join(gradient[piece.start : piece.stop].tobytes() for piece in pieces)
            offsets = np.cumsum([0, *(4 * (piece.stop - piece.start) for piece in pieces)])[:-1].tolist()
            request = AccumulateRequest(JOB, epochs, name.evaluation, name.bundle, weight, shards, tuple(offsets))
            view, now_s = memoryview(body), self.world.now_s
            return (
                lambda server, token, wire: server.vectors.accumulate(token, wire, request, view, now_s),
                AccumulateRequest,
            )

        def take(answer: Any, asked: set[int]) -> set[int]:
            for result in answer[0].results:
                if result.code in MOVED | LATER:
                    continue
                left.discard(result.shard)
                bucket = self.cluster.layout.bucket_of_shard[result.shard]
                if result.code and (bucket not in refused or result.code in LOST):
                    if result.code not in LOST and result.code not in GRADIENT_REFUSED:
                        raise ViolationError(f"a gradient is refused: {result.code} {result.message}")
                    refused[bucket] = result.code
            return {bucket for bucket in asked if not left & set(self.cluster.shards(bucket))}

        def done() -> None:
            self.work.pushed(held, refused)
            self.advance()

        Ask(self.cluster, self.key[0], self.cluster.buckets, make, take, done, self.lives)
