"""One seed of replicas of partitions: real members, leads and groups, and whatever may happen to them; then calm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from adamctl.config.partitioning import plan_of
from adamctl.kernels.partition.stages import CutNetwork, cut_network, cuts_of
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator.core.instructions import Answer, Evaluated, Instruction
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.roles.worker.partition.group import Group
from tests.roles.coordinator.core.group_world import Coordinator
from tests.roles.coordinator.simulation import plan as run_plan
from tests.sim.engine import ViolationError, World
from tests.sim.partitions.blocks import Blocks, planned_blocks
from tests.sim.partitions.models import random_setting
from tests.sim.partitions.process import Worker
from tests.sim.partitions.replay import check_replays
from tests.sim.partitions.rig import RIG, PartitionFault, changed, gathered_up_to
from tests.sim.partitions.steps import StepServer
from tests.sim.partitions.truth import GroupTruth, ServerTruth, Truth

EVENTS_MIN = 150
SILENT_AFTER_S, READY_S = 3.0, 4.0
OVER_AFTER_S = 60.0
TROUBLES = ("dies", "dies", "lead dies", "silent", "stop", "stop", "stop", "cut", "coordinator", "for good")
GROUPS_ARE_SHORT = 0.2
"""Of the seeds: groups end soon after each other, and what members of the former have sent comes to the next."""


@dataclass
class Result:
    """What a clean seed gives. `flights` of all groups, whether finished or not; `replayed`: checked bit for bit."""

    events: int
    partitions: int
    flights: int
    groups: int
    evaluations: int
    replayed: int


class PartitionCoordinator(Coordinator):
    """The real core. What an evaluation found is what was reported."""

    def __init__(self, scenario: PartitionScenario, settings: Any, examples: int, evaluated: int) -> None:
        super().__init__(cast(Any, scenario), settings, examples, evaluated)
        self._scenario = scenario
        self._exclusive: set[int] = set()

    def is_exclusive(self, task: int) -> bool:
        """Whether nothing is trained while an evaluation's task is done."""
        return task in self._exclusive

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Evaluated):
            self._scenario.check_evaluated(instruction.result.loss)
            return
        if isinstance(instruction, Answer) and self.core.run.desk.exclusive:
            self._exclusive |= {task.id for task in instruction.reply.evaluate}
        super()._carry_out(instruction)


class PartitionScenario:
    """Everything of one seed."""

    def __init__(
        self, seed: int, members: int = 0, *, planted: PartitionFault | None = None, keep_trace: bool = False
    ) -> None:
        """`members` is for other suites: the seed decides."""
        self.world = world = World(seed, keep_trace=keep_trace)
        random, self.planted = world.random, planted
        self.setting = random_setting(random, seed)
        self._numbers = 0
        with changed(gathered_up_to(self.setting.units_gathered_max)):
            self._build(seed)
        self._delay_s = random.choice((0.002, 0.01, 0.05))
        self._late, self._late_s = random.choice((0.0, 0.05, 0.2)), random.choice((0.3, 1.5))
        self._block_s, self._block_late = random.choice((0.0002, 0.001, 0.004)), random.choice((0.0, 0.02, 0.2))
        self._copies = random.choice((0.0, 0.5, 1.0))

    def _build(self, seed: int) -> None:
        setting, experiment, random = self.setting, self.setting.experiment, self.world.random
        self.plan = plan_of(experiment)
        self.network = cut_network(experiment.model, cuts_of(self.plan), "numpy")
        layout = build_layout(experiment.model, 1, self.plan.owners)
        self.truth = Truth(setting, self.plan, self.network, layout)
        values = np.zeros(layout.flat_size, np.float32)
        for index, tensor in enumerate(layout.tensors):
            rows = initial_rows(tensor, index, 0, tensor.shape[0], seed)
            values[tensor.offset : tensor.offset + tensor.size] = rows.reshape(-1)
        self.server = ServerTruth(self.truth, values)
        self.steps = StepServer(self.server)
        self.truth.settled = lambda: self.steps.settled
        partitions, replicas = self.plan.partitions, experiment.cluster.workers // self.plan.partitions
        train = experiment.train
        settings = replace(
            run_plan(
                passes=train.passes, batch=train.batch, range_batches=train.range_batches, workers=replicas,
                partitions=partitions, in_step=train.in_step, max_staleness=train.max_staleness,
            ),
            evaluate_every=train.evaluate_every, checkpoint_every=0.0, pass_fraction=train.pass_fraction,
            silent_after_s=SILENT_AFTER_S, group_ready_s=READY_S, no_worker_s=1e9, finish_wait_s=10.0, gather_s=2.0,
        )  # fmt: skip
        self.coordinator = PartitionCoordinator(self, settings, setting.training, setting.validation)
        self.planned = planned_blocks(self.plan, experiment.optimizer.clip_norm is not None)
        count, hosts = partitions * replicas + random.choice((0, 0, 1)), random.randint(1, 2)
        names = [f"w{number}" for number in range(1, count + 1)]
        self.workers = {name: Worker(self, name, f"h{random.randint(1, hosts)}") for name in names}
        self._stalled = 0.0, 0.0
        self._stalls = 0
        self.evaluations = 0
        self._may_go = count - partitions * replicas

    # --- what the parts of it ask -------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def delay_s(self) -> float:
        """Returns how long a message takes."""
        random = self.world.random.random
        return self._delay_s * random() + (self._late_s * random() if random() < self._late else 0.0)

    def block_delay_s(self) -> float:
        """Returns how long a block takes that is sent."""
        random = self.world.random.random
        return self._block_s * random() + (0.05 * random() if random() < self._block_late else 0.0)

    def stalled_until_s(self) -> float:
        """Returns before when nothing comes that members say to each other now."""
        sent_until_s, until_s = self._stalled
        return until_s if self.world.now_s < sent_until_s else 0.0

    def group_truth(self, group: Group, network: CutNetwork, worker: Worker) -> GroupTruth:
        """Returns what is known of a group, whose memory is new."""
        name: tuple[object, ...] = (group.epoch,) if group.epoch else (0, *worker.key, worker.sessions)
        if name not in self.truth.groups:
            partitions, random = range(self.plan.partitions), self.world.random
            pairs = [(one, other) for one in partitions for other in partitions if one != other]
            copied = frozenset(pair for pair in pairs if random.random() < self._copies)
            blocks = Blocks(network, self.planned, group.batch, group.flights, copied)
            self.truth.groups[name] = GroupTruth(self.truth, name, blocks)
        return self.truth.groups[name]

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What does not hold is noted, wherever it is caught."""
        try:
            yield
        except AssertionError as violation:
            self.truth.note(violation)
            raise

    @property
    def in_step(self) -> bool:
        return self.setting.experiment.train.in_step

    def check_pace(self, lead: WorkerKey, group: GroupTruth) -> None:
        """A flight has begun: the coordinator lets the replica make so many steps, if it still counts it."""
        run, bound = self.coordinator.core.run, self.setting.experiment.train.max_staleness
        if bound is None or lead not in run.workers or run.final_state:
            return
        begun = sum(flight.trains for flight in group.flights.values())
        if begun > run.pace.limit(lead):
            raise ViolationError(f"a flight begins too early: {begun} of {group.name}, {run.pace.limit(lead)} may")

    def check_told(self, group: GroupTruth, done: int) -> None:
        """A lead tells how many steps are done."""
        true = sum(flight.trains and flight.finished(self.plan.partitions) for flight in group.flights.values())
        if self.in_step:
            true = self.steps.settled
        if done > true:
            raise ViolationError(f"steps are told that are not done: {done} of {group.name}, {true} are")

    def check_evaluated(self, loss: float | None) -> None:
        """An evaluation is over."""
        self.evaluations += 1
        self.truth.check_evaluated(loss)

    # --- the seed -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs until all is trained, then computes every flight again.

        Raises:
            ViolationError: something that must hold does not.
        """
        setting, world = self.setting, self.world
        planted = changed(self.planted.changes) if self.planted is not None else nullcontext()
        try:
            with changed(gathered_up_to(setting.units_gathered_max)):
                with changed(RIG), planted:
                    self._simulate()
                replayed = check_replays(self.truth)
        finally:
            self._bury()
        groups = self.truth.groups.values()
        flights = sum(len(group.flights) for group in groups)
        return Result(world.events, self.plan.partitions, flights, len(groups), self.evaluations, replayed)

    def _simulate(self) -> None:
        world, run = self.world, self.coordinator.core.run
        for worker in self.workers.values():
            world.after(world.random.random() * 0.3, worker.start)
        world.after(world.random.random() * 0.3, self.coordinator.begin)
        self._stalls = 3 if world.random.random() < GROUPS_ARE_SHORT else 0
        troubles, within_s = world.random.choice((0, 0, 1, 2, 4)), world.random.choice((0.5, 1.0, 2.5))
        for _ in range(0 if self._stalls else troubles):
            kind = world.random.choice(TROUBLES)
            world.after(0.3 + world.random.random() * within_s, partial(self._trouble, kind))
        world.run_until(3.0 if troubles or self._stalls else 0.5)
        self._end_troubles()
        self._wait(lambda: bool(run.final_state), OVER_AFTER_S, "flights do not finish")
        self.coordinator.ledger.check_end(run)
        alive = [worker for worker in self.workers.values() if worker.alive]
        self._wait(lambda: all(worker.done for worker in alive), OVER_AFTER_S, "who is there is not told of the end")

    def _wait(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        world, truth = self.world, self.truth
        until_s = world.now_s + seconds
        while not reached():
            if truth.violation is not None:
                raise truth.violation
            if world.now_s >= until_s:
                open_flights = {
                    group.name: [one for one in group.flights if not group.flights[one].told]
                    for group in truth.groups.values()
                }
                raise ViolationError(f"{what}: {seconds:g} s after faults, {open_flights}")
            world.run_until(world.now_s + 0.25)

    def _trouble(self, kind: str) -> None:
        random, coordinator = self.world.random, self.coordinator
        worker = random.choice(list(self.workers.values()))
        length_s = random.random() * random.choice((0.1, 0.5, 4.0))
        self.world.note("world", kind, worker.name)
        match kind:
            case "stop":
                worker.stopped_until_s = self.world.now_s + length_s
            case "coordinator":
                coordinator.stopped_until_s = self.world.now_s + length_s / 2
            case "cut":
                if worker.link is not None:
                    worker.link.cut()
            case "for good" if self._may_go:
                self._may_go -= 1
                worker.crash(noticed=random.random() < 0.5)
                worker.gone = True
            case _:
                if kind == "lead dies":
                    leads = [one for one in self.workers.values() if one.group is not None and not one.group._own]
                    worker = random.choice(leads) if leads else worker
                worker.crash(noticed=kind != "silent")
                self.world.after(min(length_s, 1.0), worker.start)

    def group_begins(self, members: list[Worker]) -> None:
        """A group is about to work: its end may be near."""
        if self._stalls and len(members) > 1:
            self._stalls -= 1
            delay_s = 0.3 * self.world.random.random()
            self.world.after(delay_s, partial(self._stall, self.world.random.choice(members)))

    def _stall(self, worker: Worker) -> None:
        """What members send each other is late, and meanwhile a member's group ends and another begins."""
        world = self.world
        death_s = 0.05 + world.random.random() * 0.4
        self._stalled = world.now_s + death_s, world.now_s + death_s + 0.3 + world.random.random()
        world.after(death_s, lambda: worker.crash(noticed=True))
        world.after(death_s + 0.02, worker.start)

    def _end_troubles(self) -> None:
        self.coordinator.stopped_until_s = 0.0
        self._late = self._block_late = 0.0
        self._stalls = 0
        self._stalled = 0.0, 0.0
        for worker in self.workers.values():
            worker.stopped_until_s = min(worker.stopped_until_s, self.world.now_s)
            worker.start()

    def _bury(self) -> None:
        for worker in self.workers.values():
            if worker.alive:
                worker.crash(noticed=False)
                worker.loop.bury()
