"""A batch algorithm as a run's state machine sees it: how far it is, and what checkpoints keep of it (DistBelief 4.2).

A `BatchRun` decides what servers and workers do; this counts on from the run that a checkpoint is of, and adds up where
the time goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal, TypeAlias

import msgspec

from adamctl.optimizers.execution import Execution, Progress
from adamctl.roles.coordinator.core.batch_run import BatchRun
from adamctl.roles.coordinator.core.bundles import Bundle, WorkerKey
from adamctl.roles.coordinator.core.progress import BatchProgress
from adamctl.roles.coordinator.core.sameness import Sameness

Phase: TypeAlias = Literal["commands", "evaluation", "rest"]
"""What a run waits for: servers that carry out commands; workers; nothing, since there is no worker or it is held."""


class BatchSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch algorithm needs to be resumed, with the kept vectors that servers hold.

    `state`, `evaluations`, `further_trials`: what its last commit said. `commit`: its number; in the job that goes on
    from here they are counted from 0 again. `iterations_before`, `pairs_skipped_before`: up to the last restart, where
    the program began anew. `loss`: see `BatchJob`. `implementation`: of its workers.
    """

    state: dict[str, Any] = {}
    evaluations: int = 0
    further_trials: int = 0
    commit: int = 0
    restarts: int = 0
    iterations_before: int = 0
    pairs_skipped_before: int = 0
    backups: int = 0
    backups_won: int = 0
    command_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    loss: float | None = None
    stop_reason: str = ""
    implementation: dict[str, str] = {}


class Phases:
    """The seconds that a run has spent in commands and in evaluations."""

    def __init__(self, command_s: float = 0.0, evaluation_s: float = 0.0) -> None:
        self._seconds = {"commands": command_s, "evaluation": evaluation_s, "rest": 0.0}
        self._phase: Phase = "rest"
        self._since_s = 0.0

    def enter(self, phase: Phase, now_s: float) -> None:
        self._seconds[self._phase] += now_s - self._since_s
        self._phase, self._since_s = phase, now_s

    @property
    def command_s(self) -> float:
        return self._seconds["commands"]

    @property
    def evaluation_s(self) -> float:
        return self._seconds["evaluation"]


class BatchJob:
    """One run of a batch algorithm.

    Attributes:
        algorithm: its name.
        run: what servers and workers do. Whoever carries it out changes it; a run's state machine only reads it.
        phases: where the time goes.
        sameness: which workers compute alike.
    """

    def __init__(
        self,
        algorithm: str,
        start: Callable[[Progress | None], Execution],
        bundles: Sequence[Bundle],
        buckets: int,
        snapshot: BatchSnapshot | None = None,
    ) -> None:
        """Begins a run, or goes on from a snapshot.

        Args:
            start: makes the program, from what was committed.
            buckets: how many the servers hold.

        Raises:
            ProgramError: the first request of the program is refused.
        """
        self.algorithm = algorithm
        former = snapshot or BatchSnapshot()
        committed = Progress(former.state, former.evaluations, former.further_trials) if snapshot else None
        self.run = BatchRun(start, committed, bundles, buckets)
        self.run.book.backups, self.run.book.backups_won = former.backups, former.backups_won
        self.phases = Phases(former.command_seconds, former.evaluation_seconds)
        self.sameness = Sameness(former.implementation)
        self._former = former
        if former.loss is not None:
            self.run.loss = former.loss

    @property
    def examples(self) -> int:
        """Of the batch."""
        return self.run.book.bundles[-1].stop

    @property
    def committed(self) -> Progress:
        """What the last commit said that all servers have."""
        return self.run.execution.committed

    @property
    def commit(self) -> int | None:
        """The number of the commit that all shards are at; None while they may be at different ones."""
        return self.run.commit

    @property
    def stop_reason(self) -> str | None:
        """Why the program has stopped; None while it runs."""
        return self.run.execution.stop_reason

    @property
    def passes(self) -> int:
        """Evaluations of the whole batch up to the last commit; once it has stopped, all of them."""
        return self.committed.evaluations if self.stop_reason is None else self.run.execution.evaluations

    @property
    def loss(self) -> float | None:
        """Mean over the batch at the accepted point, without an L2 term; None before the first commit."""
        return self.run.loss if isfinite(self.run.loss) else None

    @property
    def restarts(self) -> int:
        """How often the history was dropped, by the program or because servers had lost iterations."""
        own = self.committed.state.get("restarts")
        return self._former.restarts + self.run.restarts + (own if isinstance(own, int) else 0)

    def is_at_work(self, worker: WorkerKey) -> bool:
        """Whether a worker has a bundle now."""
        return any(worker in holders for holders in self.run.book.outstanding().values())

    def snapshot(self) -> BatchSnapshot:
        """Returns what is needed to go on from the last commit."""
        run, book = self.run, self.run.book
        return BatchSnapshot(
            state=dict(self.committed.state),
            evaluations=self.committed.evaluations,
            further_trials=self.committed.further_trials,
            commit=self.commit or 0,
            restarts=self._former.restarts + run.restarts,
            iterations_before=self._before("iteration", self._former.iterations_before),
            pairs_skipped_before=self._before("pairs_skipped", self._former.pairs_skipped_before),
            backups=book.backups,
            backups_won=book.backups_won,
            command_seconds=self.phases.command_s,
            evaluation_seconds=self.phases.evaluation_s,
            loss=self.loss,
            stop_reason=self.stop_reason or "",
            implementation=self.sameness.implementation,
        )

    def _before(self, name: str, former: int) -> int:
        """Returns what a program had counted before it began anew."""
        return former + sum(_whole(one.state, name) or 0 for one in self.run.dropped)

    def _counted(self, name: str, former: int) -> int | None:
        """Returns what a program has counted in the whole run; None if it does not say."""
        now, before = _whole(self.committed.state, name), self._before(name, former)
        return now if now is None and not before else before + (now or 0)

    def progress(self) -> BatchProgress:
        """Returns what people are shown."""
        execution, book, state = self.run.execution, self.run.book, self.committed.state
        now = book.evaluation
        return BatchProgress(
            algorithm=self.algorithm,
            iterations=self._counted("iteration", self._former.iterations_before),
            evaluations=execution.evaluations,
            loss=_finite(state, "loss"),
            gradient_max=_finite(state, "gradient_max"),
            step=_finite(state, "step"),
            bundles=0 if now is None else len(now.done),
            bundles_total=len(book.bundles),
            pairs_skipped=self._counted("pairs_skipped", self._former.pairs_skipped_before),
            restarts=self.restarts,
            backups=book.backups,
            backups_won=book.backups_won,
            command_seconds=self.phases.command_s,
            evaluation_seconds=self.phases.evaluation_s,
            stop_reason=self.stop_reason or "",
        )


def _whole(state: Mapping[str, Any], name: str) -> int | None:
    found = state.get(name)
    return found if isinstance(found, int) else None


def _finite(state: Mapping[str, Any], name: str) -> float | None:
    found = state.get(name)
    return float(found) if isinstance(found, int | float) and isfinite(found) else None
