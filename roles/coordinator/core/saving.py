"""The part of a run's state machine that is about checkpoints: when one is due, who asks for it, what follows it."""

from __future__ import annotations

from collections.abc import Callable

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.evaluate import Marks
from adamctl.roles.coordinator.core.instructions import Outbox, Saved, WriteCheckpoint
from adamctl.roles.coordinator.core.state import RunState
from adamctl.wire.constants import ErrorCode


class Saving:
    """Orders the checkpoints of a run, one at a time.

    Attributes:
        wanted: one is to be written as soon as nothing is being evaluated or written.
        writing: the number of the one being written, 0 if none is.
    """

    def __init__(self, run: RunState, out: Outbox, fail: Callable[[str], None]) -> None:
        """`run` is the run it belongs to, `out` takes its instructions. `fail` ends a run that cannot be saved."""
        self._run, self._out, self._fail = run, out, fail
        self.wanted = False
        self.writing = 0
        self._asking: list[int] = []  # tokens of requests for the next checkpoint
        self._awaiting: list[int] = []  # tokens of requests for the checkpoint being written
        self.set_up()

    def set_up(self) -> None:
        """Sets up what depends on how many examples a pass has; marks that were passed before are left out."""
        book = self._run.book
        self._marks = Marks(self._run.plan.checkpoint_every, book.examples, book.examples_total)
        self._marks.reached(book.handed_out)

    def ask(self, event: events.CheckpointWanted) -> None:
        """Takes in a client's request for a checkpoint."""
        run = self._run
        job, ending = run.plan.job, run.ending
        if run.final_state or (ending is not None and (ending.checkpoint or not ending.checkpoint_wanted)):
            text = f"run {job} is over or ending; its last checkpoint is there"
            self._out.refuse(event.token, ErrorCode.RUN_ENDED, text)
        elif not run.ready:
            self._out.refuse(event.token, ErrorCode.NOT_READY, f"run {job} is still starting; try again soon")
        else:
            self._asking.append(event.token)

    def want_best(self, alone: bool) -> None:
        """Wants the parameters just evaluated, the best so far. `alone`: nothing was trained meanwhile."""
        self.wanted, self._run.best_is_written = True, not alone

    def order_due(self) -> None:
        """Orders what is due. Call it after evaluations were ordered, so that their results are in the manifest and a
        single worker has pushed everything."""
        run = self._run
        if self._marks.reached(run.book.handed_out) is not None:
            self.wanted = True
        if not run.can_be_saved:
            return
        if self.wanted and run.desk.current is None and not self.writing:
            self.wanted = False
            self.write()
        if self._asking and not self.writing:
            self.write()

    def write(self) -> int:
        """Orders the next checkpoint; returns its number."""
        run = self._run
        run.checkpoint_number += 1
        self.writing = run.checkpoint_number
        self._awaiting, self._asking = self._asking, []
        self._out.put(WriteCheckpoint(run.checkpoint_number, run.snapshot()))
        return run.checkpoint_number

    def ended(self, event: events.CheckpointWritten | events.CheckpointFailed) -> None:
        """Notes that a checkpoint is written, or that it could not be."""
        run = self._run
        if event.number != self.writing:
            return
        self.writing = 0
        run.best_is_written = run.best_is_written or not self.wanted
        tokens, self._awaiting = self._awaiting, []
        if isinstance(event, events.CheckpointWritten):
            self._out.extend(Saved(token, event.number) for token in tokens)
            return
        text = f"checkpoint {event.number} could not be written: {event.cause}"
        for token in tokens:
            self._out.refuse(token, ErrorCode.INTERNAL, text)
        if run.ending is None or run.ending.checkpoint != event.number:
            self._out.say(text)
        elif not run.ending.put_off(run.now_s, run.plan.last_checkpoint_s):
            self._fail(text)
        elif run.ending.retries == 1:
            self._out.say(f"{text}; trying again, for {run.plan.last_checkpoint_s:.0f} s")

    def refuse_all(self) -> None:
        """Refuses all requests for checkpoints, as the run is over."""
        for token in (*self._awaiting, *self._asking):
            text = f"run {self._run.plan.job} is over ({self._run.end_text})"
            self._out.refuse(token, ErrorCode.RUN_ENDED, text)
        self._awaiting, self._asking = [], []
