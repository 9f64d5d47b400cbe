"""One seed of a batch run: real servers, bundles and coordinator, and whatever may happen to them; then calm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from adamctl.optimizers.execution import Progress
from adamctl.roles.worker.core.bundle_work import Pull
from tests.sim.engine import ViolationError, World
from tests.sim.partitions.rig import Change, changed
from tests.sim.sandblaster.cluster import Cluster
from tests.sim.sandblaster.coordinator import SimCoordinator
from tests.sim.sandblaster.servers import Kept
from tests.sim.sandblaster.truth import undisturbed
from tests.sim.sandblaster.worker import SimWorker

EVENTS_MIN = 200
OVER_AFTER_S = 120.0
TROUBLES = (
    "worker",
    "worker",
    "stop",
    "lost",
    "server",
    "server",
    "trap",
    "trap",
    "trap",
    "trap",
    "moves",
    "said",
    "ends",
)
WORK = ("Opening", "Addition", "Round", "Commit", "Commit")


@dataclass
class Result:
    """What a clean seed gives."""

    events: int
    evaluations: int
    takeovers: int
    restarts: int
    resumed: int


@dataclass(frozen=True)
class SandblasterFault:
    """A planted fault to be found. `changes`: what takes the place of what while a seed runs."""

    about: str
    changes: Sequence[Change]


class SandblasterScenario:
    """Everything of one seed.

    Attributes:
        mixed: iterations may be, so that there is no undisturbed run to compare with.
    """

    def __init__(
        self, seed: int, members: int = 0, *, planted: SandblasterFault | None = None, keep_trace: bool = False
    ) -> None:
        """`members` is for other suites: the seed decides."""
        self.world = world = World(seed, keep_trace=keep_trace)
        random, self.planted = world.random, planted
        copies = random.choice((1, 3, 3))
        goes_back = copies == 1 and random.random() < 0.5
        names = [f"ps-{n}" for n in range(3 if copies == 3 else random.randint(1, 2))]
        self.cluster = Cluster(world, copies, names, random.randint(2, 5), goes_back)
        self.problem, self.mixed = self.cluster.problem, goes_back
        self.truth = undisturbed(self.problem)
        self._points = set(self.truth.points)
        self._pulled: dict[tuple[int, tuple[int, ...]], bytes] = {}
        self._snapshot: tuple[Progress | None, int, int, dict[int, Kept]] = None, 0, 0, {}
        self._resumed = 0
        self.coordinator = SimCoordinator(self, None, 0, 0)
        self._worker_names = [f"w-{n}" for n in range(random.randint(1, 3))]
        self.workers: dict[str, SimWorker] = {}

    # --- what the parts of it tell ------------------------------------------------------------------------------------

    def delay_s(self) -> float:
        return 0.0005 + 0.005 * self.world.random.random() + (0.3 if self.world.random.random() < 0.02 else 0.0)

    def pulled(self, pull: Pull, values: Any) -> None:
        """A worker has the vector of an evaluation."""
        found, epochs = values.tobytes(), tuple(self.cluster.epochs)
        where = epochs if self.mixed else ()  # a server that went back has another vector: what it finds is dropped
        if self._pulled.setdefault((pull.evaluation, where), found) != found:
            raise ViolationError(f"workers have different vectors: of evaluation {pull.evaluation}")
        if not self.mixed and found not in self._points:
            raise ViolationError(f"a vector that nothing is evaluated at: evaluation {pull.evaluation}")

    def history_dropped(self) -> None:
        """Iterations are mixed from now on: a server was lost with what nobody can make again."""
        if self.problem.name != "descent":
            raise ViolationError("the history is dropped: no store went back")
        self.mixed = True

    def committed(self, coordinator: SimCoordinator) -> None:
        """All shards are at the same commit, and the coordinator may go on from it."""
        if coordinator.run.execution.stop_reason is not None or self.mixed:
            return
        shards = self.cluster.live_shards()
        commits = {shard.memory.commit for shard in shards.values()}
        if len(shards) < len(self.cluster.layout.shards) or any(one.batch is not None for one in shards.values()):
            return  # some have been lost since; a later commit will do
        if len(commits) > 1:
            raise ViolationError(f"a commit is not everywhere: {sorted(commits)}")
        kept = {index: Kept.of(shard) for index, shard in shards.items()}
        self._snapshot = coordinator.run.execution.committed, commits.pop(), coordinator.run.evaluations, kept

    # --- the seed -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs until the program stops.

        Raises:
            ViolationError: something that must hold does not.
        """
        with changed(self.planted.changes) if self.planted is not None else nullcontext():
            self._simulate()
        takeovers = sum(self.cluster.epochs) % 1000
        evaluations = self.coordinator.run.evaluations
        return Result(self.world.events, evaluations, takeovers, self.coordinator.run.restarts, self._resumed)

    def _simulate(self) -> None:
        world, random = self.world, self.world.random
        faults = world.network
        faults.loss, faults.duplication = random.choice((0.0, 0.02, 0.1)), random.choice((0.0, 0.05, 0.3))
        faults.reordering = random.choice((0.0, 0.05, 0.3))
        self.cluster.slow_s = random.choice((0.0005, 0.005, 0.03))
        for name in self._worker_names:
            self._start_worker(name)
        world.after(random.random() * 0.1, self.coordinator.begin)
        within_s = random.choice((1.0, 3.0, 6.0))
        for _ in range(random.choice((0, 2, 5, 10))):
            world.after(random.random() * within_s, partial(self._trouble, random.choice(TROUBLES)))
        self._until(within_s)
        faults.loss = faults.duplication = faults.reordering = 0.0
        self.cluster.trap = None
        self._until(world.now_s + OVER_AFTER_S)
        if self.coordinator.run.execution.stop_reason is None:
            run = self.coordinator.run
            request = type(run.execution.request).__name__
            outstanding = dict(run.book.outstanding())
            raise ViolationError(f"the run does not end: {request}, bundles {outstanding}, open {run.opened()}")
        world.run_until(world.now_s + 2.0)
        self._check_end()

    def _until(self, time_s: float) -> None:
        while self.world.now_s < time_s and self.coordinator.run.execution.stop_reason is None:
            self.world.run_until(min(self.world.now_s + 0.1, time_s))

    def _check_end(self) -> None:
        execution, shards = self.coordinator.run.execution, self.cluster.live_shards()
        commits = {shard.memory.commit for shard in shards.values()}
        if self.mixed:
            return  # a store may have gone back after the last commit
        if len(shards) < len(self.cluster.layout.shards) or len(commits) > 1:
            raise ViolationError(f"shards are at different commits: {sorted(commits)}")
        x = b"".join(shards[index].values.array.tobytes() for index in sorted(shards))
        if x != self.truth.x or execution.committed.state != self.truth.state:
            raise ViolationError("the parameters are not those of the undisturbed run")
        if execution.stop_reason != self.truth.reason:
            raise ViolationError(f"it stops for another reason: {execution.stop_reason}, {self.truth.reason}")

    # --- troubles -----------------------------------------------------------------------------------------------------

    def _start_worker(self, name: str) -> None:
        old = self.workers.get(name)
        incarnation = 1 if old is None else old.key[1] + 1
        worker = self.workers[name] = SimWorker(self, name, incarnation, self.world.random.choice((1.0, 1.0, 0.2)))
        self.world.after(0.05 * self.world.random.random(), worker.ask)

    def _trouble(self, kind: str) -> None:
        random, cluster = self.world.random, self.cluster
        if self.coordinator.run.execution.stop_reason is not None:
            return
        self.world.note("world", kind)
        worker = self.workers[random.choice(self._worker_names)]
        bucket = random.choice(cluster.buckets)
        match kind:
            case "worker":
                self._kill_worker(worker)
            case "stop":
                worker.stopped_until_s = self.world.now_s + random.random() * 3.0
            case "lost":
                self.coordinator.lose(worker.key)  # it is only slow
            case "server":
                cluster.kill(random.choice(cluster.names))
            case "trap":
                cluster.trap = random.choice(WORK), random.randint(0, 2 * len(cluster.layout.shards))
            case "moves":
                others = cluster.in_sync[bucket] - {cluster.primary[bucket]}
                if others:
                    cluster.take_over(bucket, random.choice(sorted(others)))
            case "said":
                self.coordinator.said_to_be_lost([bucket])  # a worker's news are old
            case "ends" if not self.mixed:
                self._resume()

    def _kill_worker(self, worker: SimWorker) -> None:
        worker.alive = False
        random, coordinator = self.world.random, self.coordinator
        self.world.after(0.5 * random.random(), lambda: coordinator.lose(worker.key))
        self.world.after(0.5 * random.random(), lambda: self._start_worker(worker.key[0]))

    def _resume(self) -> None:
        """All processes end; the run goes on from the last commit."""
        self._resumed += 1
        self.coordinator.alive = False
        for worker in self.workers.values():
            worker.alive = False
        progress, commit, evaluations, kept = self._snapshot
        self.cluster.start(kept)
        self._pulled.clear()
        self.coordinator = SimCoordinator(self, progress, commit, evaluations)
        for name in self._worker_names:
            self._start_worker(name)
        self.coordinator.begin()
