"""The part of a run's state machine that is about a batch algorithm: an evaluation of the whole batch is a pass.

The program waits at a commit where the split held out is evaluated by its only worker, while a checkpoint is written,
and once the run ends. Until then it and its bundles go on without this part (`BatchJob.run`).
"""

from __future__ import annotations

from adamctl.optimizers.execution import BUDGET
from adamctl.roles.coordinator.core.saving import Saving
from adamctl.roles.coordinator.core.state import RunState


class BatchPasses:
    """Moves a run's passes on. `run` is the run it belongs to, `saving` writes its checkpoints.

    Attributes:
        goes: the program may go on, and the training clock runs.
    """

    def __init__(self, run: RunState, saving: Saving) -> None:
        self._run, self._saving = run, saving
        self.goes = False
        self._commits = 0  # that are among the run's updates

    @property
    def holds(self) -> bool:
        """Whether the program must not go on now."""
        return self._run.halted or bool(self._saving.writing) or bool(self._run.final_state)

    def follow(self) -> bool:
        """Counts the evaluations up to the last commit; returns whether there are new ones."""
        run = self._run
        job = run.batch
        assert job is not None
        moved = False
        while run.book.current + run.book.finished < job.passes:
            given = run.book.take()
            if given is None:
                break
            run.book.finish(given)
            run.tally.examples += given.examples
            run.tally.steps += -(-given.examples // run.plan.batch)
            moved = True
        if job.commit is not None:  # a job that goes on from a checkpoint counts from 0 again, the run does not
            run.tally.updates += job.commit - self._commits
            self._commits = job.commit
        return moved

    def settle(self) -> None:
        """Lets the training clock run exactly while the program may go on and a worker is there."""
        run = self._run
        goes = not self.holds and bool(run.workers) and run.batch is not None and run.batch.stop_reason is None
        if goes == self.goes:
            return
        self.goes = goes
        if goes:
            run.clock.hand_out(run.now_s)
        else:
            run.clock.take_back(run.now_s)

    def end_text(self) -> tuple[str, str] | None:
        """Returns why the run ends, if the program has stopped: a reason, and for people, what it was if they ask."""
        job = self._run.batch
        if job is None or job.stop_reason is None:
            return None
        if job.stop_reason == BUDGET:
            return "passes", ""
        return "converged", f"{job.algorithm} has stopped: {_TEXTS.get(job.stop_reason, job.stop_reason)}"


_TEXTS = {
    "gradient": "the largest magnitude in the gradient is below optimizer.gradient_tolerance",
    "change": "an iteration changed the loss by less than optimizer.change_tolerance",
    "precision": "no better point can be told from this one in float32",
}
