"""One seed of a whole run: the cluster of `servers.scenario` with a coordinator, and workers that train its ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from adamctl.roles.coordinator.core.events import RunPlan
from adamctl.roles.coordinator.core.losses import LossPlan
from adamctl.roles.coordinator.plan import unanswered_batches
from tests.sim.engine import ViolationError
from tests.sim.servers.cluster import JOB, ServerCluster, ServerFault
from tests.sim.servers.scenario import Result, ServerScenario
from tests.sim.runs.coordinator import NAME, SimCoordinator
from tests.sim.runs.data_server import SimDataServer
from tests.sim.runs.losses import LOOK_EVERY_S
from tests.sim.runs.worker import RunWorker
from tests.sim.servers.shells.server import SimServer

UNTROUBLED_S = 1.5, 6.0
"""How long a run would take if nothing happened."""
RUN_S = 60.0
"""After faults have ended, until the run has."""
TROUBLES_S = 1.0
"""When they begin: workers come, and the run may not be ready yet."""
SERVER_AGAIN_S, DATA_AGAIN_S, WILD_TIMES = 20.0, 15.0, 3.0
"""Longer than faults last; where clocks are arbitrarily wrong, so many times as long."""
SOON_S = 1.0
"""How long servers are waited for in some seeds in which others have copies."""
FOR_GOOD, FOR_GOOD_ALONE, NOTICED_S = 0.1, 0.4, 9.0
"""How often servers do not come back at all, and where there are no copies; how soon that is noticed at the latest."""
END_AGAIN_S = 0.05
PUSH_EVERY = 1, 1, 1, 2, 3
"""Steps per push; above one, ranges are reported when servers have answered, so that fewer reports are late."""
TROUBLES = ("pause", "pause", "cut", "one-way", "one-way", "slow", "lonely", "lonely", "worker", "worker", "worker")


@dataclass
class RunResult(Result):
    """`again`, `late`, `duplicates`: as `RunLedger` has them; `joined`: how often a worker was taken into the run."""

    ranges: int
    again: int
    late: int
    duplicates: int
    joined: int
    over_s: float


class RunCluster(ServerCluster):
    """A cluster with a run. `workers` are its clients."""

    def __init__(self, seed: int, members: int, *, planted: ServerFault | None, keep_trace: bool) -> None:
        self.workers: list[RunWorker] = []
        super().__init__(seed, members, planted=planted, keep_trace=keep_trace, special=False)
        self.clients.append(self._worker("w3"))
        self.ledger.clients_rest = True
        random = self.world.random
        self.push_every = random.choice(PUSH_EVERY)
        self.plan = self._plan()
        names = [f"d{number}" for number in range(1, random.choice((1, 2, 2)) + 1)]
        self.data = {name: SimDataServer(self.world, name, self.hosts, self.lease_s) for name in names}
        step_s_max = random.choice((0.05, 0.2, 0.4))
        steps = random.uniform(*UNTROUBLED_S) * len(self.workers) / (step_s_max / 2)
        examples = round(steps * self.plan.batch / self.plan.passes) + random.randint(0, 3)
        processes = self.servers | self.data
        clock, losses, incarnation = self._clock(), self._loss_plan(), self.invariants.incarnation
        self.coordinator = SimCoordinator(
            self.world, clock, self.hosts, self.plan, examples, losses, processes, incarnation
        )
        self.coordinator.evaluation_examples = random.choice((0, 500, 2500))
        self.coordinator.ready_s = random.random() * random.choice((0.5, 2.0, 4.0))
        for worker in self.workers:
            worker.coordinator = self.coordinator
            worker.has_data = lambda: any(one.alive for one in self.data.values())
            worker.step_s_max, worker.push_every = step_s_max, self.push_every

    def _plan(self) -> RunPlan:
        random = self.world.random
        return RunPlan(
            job=JOB,
            passes=random.randint(2, 4),
            batch=4,
            range_batches=random.choice((1, 2, 3, 5)),
            pass_fraction=random.choice((1.0, 1.0, 1.0, 0.75)),
            warmstart_steps=random.choice((0, 0, 5)),
            evaluate_every=random.choice((0.0, 0.5, 1.0)),
            evaluate_on="test",
            target=None,
            checkpoint_every=random.choice((0.0, 0.3, 1.0)),
            workers=random.choice((2, 3, 3)),
            connections=1,
            silent_after_s=random.choice((2.5, 4.0)),
            no_worker_s=1000.0,
            finish_wait_s=3.0,
            max_staleness=random.choice((None, None, 2)),
            unanswered_batches=unanswered_batches(self.push_every),
        )

    def _loss_plan(self) -> LossPlan:
        """Parts without copies may be kept nowhere, whatever servers keep; with copies, servers may stay away."""
        copies, chance = self.replication > 1, self.world.chance(0.3)
        times = WILD_TIMES if self.wild else 1.0
        server_again_s = SOON_S if copies and chance else SERVER_AGAIN_S * times
        return LossPlan(copies, copies or not chance, server_again_s, DATA_AGAIN_S * times, LOOK_EVERY_S)

    def begin(self) -> None:
        super().begin()
        for one in self.data.values():
            self.world.after(0.2 + self.world.random.random() * 0.2, one.start)

    def _ended(self, node: str, incarnation: int) -> bool:
        process = self.data.get(node)
        if process is None:
            return super()._ended(node, incarnation)
        return not process.alive or process.incarnation not in (incarnation, 0)

    def _worker(self, name: str) -> RunWorker:
        worker = RunWorker(self.world, name, self.layout, JOB, self.servers, self.hosts, self.ledger, self.lease_s)
        worker.lost_for_good = self.invariants.given_up
        worker.sent_away = lambda why: self._check_left_out(worker, why)
        self.workers.append(worker)
        return worker

    def _check_left_out(self, worker: RunWorker, why: str) -> None:
        """Only who is no longer a member is told not to join: such a worker ends, and others do not ask again."""
        if self.invariants.incarnation(worker.name) == worker.incarnation:
            raise ViolationError(f"a worker is left out: {worker.name} is told {why}")

    def _job_made(self) -> None:
        self.coordinator.start()
        super()._job_made()


class RunScenario(ServerScenario):
    """Everything of one seed."""

    cluster: RunCluster
    cluster_type = RunCluster

    _ended_for_good: Sequence[SimServer] = ()
    for_good = False
    """Servers without which the run cannot go on have died, and nobody starts them again."""

    def _run(self) -> RunResult:
        self.world.after(TROUBLES_S, self._trouble_run)
        self.world.after(TROUBLES_S, self._trouble_data)
        result = super()._run()
        cluster, ledger = self.cluster, self.cluster.coordinator.ledger
        return RunResult(
            **asdict(result),
            ranges=len(ledger.done),
            again=ledger.again,
            late=ledger.late,
            duplicates=ledger.duplicates,
            joined=sum(worker.joined for worker in cluster.workers),
            over_s=cluster.coordinator.over_s,
        )

    # --- faults -----------------------------------------------------------------------------------------------------

    def _trouble_run(self) -> None:
        """Something happens to the coordinator, to a worker, or between them; and again later."""
        if self.calm:
            return
        world, random, coordinator = self.world, self.world.random, self.cluster.coordinator
        worker = random.choice(self.cluster.workers)
        if coordinator.alive and coordinator.core.run.state == "starting" and world.chance(0.3):
            self._cut_links([(host, NAME) for host in self.cluster.hosts])  # it learns late that the worker is gone
            worker.crash()
        match kind := random.choice(TROUBLES):
            case "pause":
                self._stop_coordinator()
            case "cut" | "one-way":
                self._cut_coordinator(both=kind == "cut")
            case "slow":
                coordinator.slow_s_max = random.choice((0.0, 0.01, 0.1))
            case "lonely":
                self._cut_links([(worker.name, host) for host in self.cluster.hosts])
            case _:
                self._trouble_client(worker)
        world.after(random.choice((0.2, 1.0, 2.0)) * random.random(), self._trouble_run)

    def _trouble_data(self) -> None:
        """One data server dies, or all of them do; and again later."""
        if self.calm:
            return
        random, data = self.world.random, list(self.cluster.data.values())
        for one in data if random.random() < 0.5 else [random.choice(data)]:
            one.down_s = random.random() * random.choice((0.1, 1.5, 3.0))
            one.crash()
        self.world.after(random.choice((0.5, 2.0, 5.0)) * random.random(), self._trouble_data)

    def _stop_coordinator(self) -> None:
        random, coordinator = self.world.random, self.cluster.coordinator
        self.world.note(NAME, "paused")
        coordinator.pause()
        self.world.after(random.random() * random.choice((0.3, 2.0, 5.0)), coordinator.resume)

    def _cut_coordinator(self, *, both: bool) -> None:
        """Cuts it off from some of the workers, or from the controllers, or both."""
        random, cluster = self.world.random, self.cluster
        workers = [worker.name for worker in cluster.workers]
        hosts = list(cluster.hosts)
        others = random.choice(([random.choice(workers)], workers, hosts, workers + hosts))
        out, back = [(NAME, other) for other in others], [(other, NAME) for other in others]
        self._cut_links(out + back if both else random.choice((out, back)))

    def _cut_links(self, links: list[tuple[str, str]]) -> None:
        """Cuts links for a time."""
        random = self.world.random
        self.world.note("network", "cut", links)
        self.world.cut.update(links)
        length_s = random.random() * random.choice((0.5, 2.0, 4.0))
        self.world.after(length_s, lambda: self.world.cut.difference_update(links))

    def _end_faults(self) -> None:
        super()._end_faults()
        self.cluster.coordinator.slow_s_max = 0.0
        self.cluster.coordinator.resume()
        for one in self.cluster.data.values():
            one.start()
        kind = self.world.random.random()
        often = FOR_GOOD if self.cluster.replication > 1 else FOR_GOOD_ALONE
        if kind < often and not self.cluster.coordinator.core.run.final_state:
            self._lose_for_good(data=kind < FOR_GOOD / 2)

    def _lose_for_good(self, *, data: bool) -> None:
        """All data servers die, or all copies of a part."""
        cluster, losses = self.cluster, self.cluster.coordinator.losses
        if losses is None:
            return
        self.world.note("world", "ENDS", "data servers" if data else "parameter servers", "for good")
        self.for_good = losses.for_good = True
        if data:
            for one in cluster.data.values():
                one.stays_down = True
                one.crash()
            return
        cluster.invariants.gentle = False
        servers = list(cluster.servers.values())
        self._ended_for_good = servers if cluster.replication > 1 else [self.world.random.choice(servers[:3])]
        self._end_again()

    def _end_again(self) -> None:
        """Whoever was about to start them finds that they end at once."""
        for server in self._ended_for_good:
            server.crash()
        self.world.after(END_AGAIN_S, self._end_again)

    def _server_crashed(self, server: SimServer) -> None:
        if server not in self._ended_for_good:
            super()._server_crashed(server)

    # --- afterwards -------------------------------------------------------------------------------------------------

    def _demand_liveness(self) -> None:
        if not self.for_good:
            super()._demand_liveness()
            return
        run, losses = self.cluster.coordinator.core.run, self.cluster.coordinator.losses
        plan = self.cluster.coordinator.loss_plan
        self.world.run_until(self.world.now_s + 1.1 * max(plan.server_again_s, plan.data_again_s) + NOTICED_S)
        if not run.final_state:
            raise ViolationError(f"the run waits for ever for servers: {run.state}")
        if run.final_state == "failed" and (losses is None or run.cause != losses.cause):
            raise ViolationError(f"the run fails of something else: {run.cause}")

    def _stop_clients(self) -> None:
        """The run has to come to its end, and with it all pushes."""
        world, coordinator = self.world, self.cluster.coordinator
        run, losses = coordinator.core.run, coordinator.losses
        until_s = world.now_s + RUN_S
        while not run.final_state and world.now_s < until_s:
            world.run_until(world.now_s + 0.1)
        if losses is not None and losses.cause and run.cause == losses.cause:
            return
        coordinator.ledger.check_end(run)
        if losses is not None and not losses.part_lost:
            losses.check_known()

    def _check_clients(self) -> None:
        for worker in self.cluster.workers:
            if worker.client is not None and worker.client.open:
                raise ViolationError(f"{worker.name} waits for its pushes in the end: {worker.client.trouble}")
