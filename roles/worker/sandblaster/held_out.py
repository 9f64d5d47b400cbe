"""A worker's evaluations on a held-out split, beside the bundles of a batch algorithm.

A request waits with the coordinator all the time: it brings ranges of the split to evaluate, is this worker's sign of
life, and is answered at once when the run is over. While ranges are evaluated none waits, so the coordinator is told
now and then that batches make progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import reduce
from math import fsum

from adamctl.model.tally import Tally
from adamctl.roles.data.client.data_client import new_arrays
from adamctl.roles.worker.sandblaster.executor import BundleExecutor
from adamctl.roles.worker.whole_replica import SIGN_OF_LIFE_S, Session
from adamctl.wire.messages import EvaluateTask, NextTaskReply, NextTaskRequest, TaskReport

POLL_S = 5.0
TASKS_HELD = 4


class HeldOutWork:
    """The evaluations of one session."""

    def __init__(self, session: Session, executor: BundleExecutor, status: Callable[[], dict[str, object]]) -> None:
        """`status`: what the coordinator is told of this worker."""
        self._session, self._executor, self._status = session, executor, status
        self._evaluation = 0
        self._busy = False

    async def run(self) -> str:
        """Evaluates what it is given, until the run is over; returns how it ended.

        Raises:
            RemoteError: the coordinator took this worker for dead.
            UnreachableError: the coordinator, a server or all data servers are gone.
        """
        reports: list[TaskReport] = []
        while True:
            self._busy = False
            reply = await self._ask(reports, TASKS_HELD, POLL_S)
            if reply.ended:
                return reply.reason
            self._busy = True
            reports = [await self._evaluate(task) for task in reply.evaluate]

    async def give_signs(self) -> None:
        """Tells the coordinator of progress while this worker evaluates; ends by being cancelled. Raises as `run`."""
        told = 0
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            if self._busy and (done := self._executor.portions_done) > told:
                told = done
                await self._ask((), 0, 0.0)

    async def _ask(self, reports: Sequence[TaskReport], wanted: int, wait_s: float) -> NextTaskReply:
        session = self._session
        return await session.coordinator.next_tasks(
            NextTaskRequest(
                session.node, session.incarnation, tuple(reports), wanted, wait_s, 0, (), self._status(),
                group_epoch=session.group_epoch,
            )
        )  # fmt: skip

    async def _evaluate(self, task: EvaluateTask) -> TaskReport:
        session = self._session
        if task.evaluation != self._evaluation:
            await self._executor.snapshot()
            self._evaluation = task.evaluation
        count = task.stop - task.start
        images, labels = new_arrays(count, session.dataset.input_shape, session.dataset.form)
        await session.data.read(session.dataset, task.split, -1, task.start, task.stop, (images, labels))
        found = await self._executor.evaluate(task, images, session.dataset.form.answers(images, labels))
        all_found = reduce(Tally.plus, found)
        loss_sum = fsum(one.loss_sum for one in found)
        return TaskReport(task.id, count, loss_sum, all_found.correct, sums=all_found.sums)
