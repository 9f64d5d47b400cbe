"""The lead's side of a step in step with other replicas: the same part for all members, and the answers to all pushes.

For `Lockstep` it stands for the compute thread and the connection to servers of a whole replica. The other members are
told in one message what to do: fetch the weights if they are to, compute their parts of the batch, push what they own,
and answer when servers have. So all weights stay as they are until the servers have applied the step everywhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from adamctl.kernels.partition.program import Batch as FlightBatch
from adamctl.roles.ps.client.parameter_client import Place
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.batches import parts_of
from adamctl.roles.worker.core.slots import Slot, StepActions
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.partition.engine import PartitionEngine
from adamctl.roles.worker.partition.lead import Lead
from adamctl.wire.messages import PartStepRequest, PartTaskRequest, TrainTask

STEP_S = 24 * 3600.0
"""How long members may take for a step: as long as other replicas do. A member that is lost ends it at once."""


@dataclass
class _Step:
    """A batch whose parts are on their way. `left`: those that are not done; `done`: by flight."""

    batch: Batch
    left: int
    done: dict[int, BatchDone] = field(default_factory=dict)


class GroupSteps:
    """See the module. Everything runs on the event loop."""

    def __init__(self, lead: Lead[PartitionEngine]) -> None:
        assert isinstance(lead.engine.downpour, Downpour), "replicas in step have servers"
        self._lead, self._downpour = lead, lead.engine.downpour
        self._answers: dict[tuple[Place, int], list[asyncio.Task[bool]]] = {}
        self._over: list[int] = []
        self._fetched = False

    def announce(self, task: TrainTask) -> None:
        """Has the others read a range whose steps will come."""
        self._lead.tell_others(PartTaskRequest(self._lead.epoch, 0, (task,)))

    def over(self, task: TrainTask) -> None:
        """Says that all steps of a range are complete, whoever has computed them."""
        self._over.append(task.id)

    async def fetch(self) -> None:
        """Fetches this member's weights; the others fetch theirs before the next part that they compute."""
        await self._downpour.fetch()
        self._fetched = True

    def submit(self, batch: Batch, place: Place, channel: int) -> None:
        """Has all members compute a part of a step, and the others push theirs."""
        task, lead = batch.task, self._lead
        assert isinstance(task, TrainTask)
        over, self._over = tuple(self._over), []
        fetches, self._fetched = self._fetched, False
        request = PartStepRequest(
            lead.epoch, lead.next_flight, task, place.step - task.step, channel, fetches, over
        )  # fmt: skip
        self._answers[place, channel] = lead.ask_others(request, STEP_S)
        whole = len(batch.labels)
        parts = parts_of(whole, lead.batch)
        step = _Step(batch, len(parts))
        for start, stop in parts:
            piece = batch._replace(images=batch.images[start:stop], labels=batch.labels[start:stop])
            made = FlightBatch(piece.images, piece.labels, batch.key, whole, start)
            number = lead.next_flight
            lead.begin_flight(piece, made, lambda done, number=number: self._part_done(step, number, done))  # type: ignore[misc]

    def _part_done(self, step: _Step, flight: int, done: BatchDone) -> None:
        """Adds up what the parts of a batch have found, in their order, when all are done."""
        step.done[flight] = done
        step.left -= 1
        if step.left:
            return
        found = [one for _, one in sorted(step.done.items())]
        self._lead.batch_done(
            BatchDone(
                step.batch,
                sum(one.loss_sum for one in found),
                sum(one.correct for one in found),
                sum(one.compute_s for one in found),
                max(one.wait_s for one in found),
                StepActions(self._lead.engine.accrued(max(step.done)), False),
            )
        )

    def push(self, slot: Slot, place: Place | None = None, channel: int = 0) -> asyncio.Task[bool]:
        """Pushes what this member owns of a part; the task ends when servers have answered all members."""
        assert place is not None
        others = self._answers.pop((place, channel))
        return asyncio.create_task(_all(self._downpour.push(slot, place, channel), *others))


async def _all(*answers: asyncio.Task[bool]) -> bool:
    """Returns whether all have been answered; who has not, ends the session by itself."""
    found = await asyncio.gather(*answers, return_exceptions=True)
    return all(one is True for one in found)
