"""A worker's evaluations on a held-out split, beside the bundles of a batch algorithm.

A request waits with the coordinator all the time: it brings ranges of the split to evaluate, is this worker's sign of
life, and is answered at once when the run is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import fsum

from adamctl.model.tally import Tally
from adamctl.roles.data.client.data_client import new_arrays
from adamctl.roles.worker.sandblaster.executor import BundleExecutor
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, TaskReport

POLL_S = 5.0
TASKS_HELD = 4


class HeldOutWork:
    """The evaluations of one session."""

    def __init__(self, session: Session, executor: BundleExecutor, status: Callable[[], dict[str, object]]) -> None:
        """`status`: what the coordinator is told of this worker."""
        self._session, self._executor, self._status = session, executor, status
        self._evaluation = 0

    async def run(self) -> str:
        """Evaluates what it is given, until the run is over; returns how it ended.

        Raises:
            RemoteError: the coordinator took this worker for dead.
            UnreachableError: the coordinator, a server or all data servers are gone.
        """
        session, reports = self._session, list[TaskReport]()
        while True:
            reply = await session.coordinator.next_tasks(
                NextTaskRequest(
                    session.node, session.incarnation, tuple(reports), TASKS_HELD, POLL_S, 0, (), self._status(),
                    group_epoch=session.group_epoch,
                )
            )  # fmt: skip
            if reply.ended:
                return reply.reason
            reports = [await self._evaluate(task) for task in reply.evaluate]

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
