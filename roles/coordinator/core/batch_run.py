"""A batch algorithm on servers and workers that may be lost at any time, as a pure state machine (DistBelief 4.2).

A program asks for evaluations, rounds and commits (`adamctl.optimizers`); servers carry them out on the vectors that
they hold, bucket by bucket, and workers evaluate bundles. Everything since the last commit is in a journal. A bucket
that loses its scratch vectors has it done again from there (`journal`); what was found by it before does not count
twice. Where stores have taken buckets back to earlier commits, iterations are mixed: then the history is dropped, and
the program begins again at the parameters that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf, isfinite

from adamctl.model.commands import ACCUMULATOR, Command, Parts, Set, inputs_of
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.vectors import Commit, Evaluate, Round
from adamctl.roles.coordinator.core.batch_orders import (
    FRACTION_BITS,
    Bucket,
    CarryOut,
    CommitVectors,
    OpenEvaluation,
    Order,
    Reductions,
    Sent,
    Task,
)
from adamctl.roles.coordinator.core.bundles import Bundle, BundleBook, Counted, Given, WorkerKey
from adamctl.roles.coordinator.core.journal import Entry, EvaluationEntry, RoundEntry, needed_again, where_left, written
from adamctl.wire.constants import GRADIENT_REFUSED, ErrorCode
from adamctl.wire.messages import BucketVectors


class BatchRun:
    """One run. Methods are events; `take_orders` returns what the shell has to send.

    Attributes:
        execution: of the program; its `stop_reason` says when it has ended.
        book: who evaluates what.
        dropped: the last commit before each time that the history was dropped.
        evaluations, rounds: the last numbers of one.
        loss: mean over the batch, as the last evaluation before the last commit found it, without an L2 term.
    """

    def __init__(
        self, start: Callable[[Progress | None], Execution], committed: Progress | None, bundles: Sequence[Bundle],
        buckets: int, commit: int = 0, evaluations: int = 0, rounds: int = 0,
    ) -> None:  # fmt: skip
        """Args:
        start: makes the program, from what was committed.
        commit, evaluations, rounds: last numbers that servers may know.
        """
        self._start = start
        self.execution = start(committed)
        self.book = BundleBook(bundles)
        self.dropped: list[Progress] = []
        self.loss = self._latest_loss = inf
        self.evaluations, self.rounds, self._commit = evaluations, rounds, commit
        self._examples = bundles[-1].stop
        self._buckets = [Bucket(commit=commit, commit_most=commit) for _ in range(buckets)]
        self._workers: set[WorkerKey] = set()
        self._journal: list[Entry] = []
        self._asked = False  # whether the present request is in the journal
        self._numbers: dict[int, int] = {}  # of evaluations, by place in the journal
        self._refused: dict[int, int] = {}  # how often one was out of range, by place in the journal
        self._open: OpenEvaluation | None = None  # the evaluation that workers are at, as an order to all buckets
        self._evaluated: list[int] = []  # buckets for which they are
        self._reductions = Reductions(())  # of the present round
        self._sent: dict[int, Sent] = {}
        self._order_number, self._anew = 0, False
        self._orders: list[Order] = []

    # --- events -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._go_on()

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    @property
    def restarts(self) -> int:
        return len(self.dropped)

    @property
    def commit(self) -> int | None:
        """The number of the commit that all shards are at; None while they may be at different ones."""
        out = any(isinstance(one.order, CommitVectors) and one.order not in self._orders for one in self._sent.values())
        begun = self._committing and (out or any(bucket.commit_most == self._commit for bucket in self._buckets))
        return None if self._anew or begun else self._commit - self._committing

    def opened(self) -> OpenEvaluation | None:
        """Returns the evaluation that workers are at, as an order to all buckets; carrying it out changes nothing."""
        return self._open

    def take_orders(self) -> list[Order]:
        taken, self._orders = self._orders, []
        return taken

    def join(self, worker: WorkerKey) -> None:
        self._workers.add(worker)

    def lose(self, worker: WorkerKey) -> None:
        self._workers.discard(worker)
        self.book.lose(worker)

    def take(self, worker: WorkerKey, now_s: float) -> Task | None:
        """Hands out a bundle, if there is one to do."""
        if self._open is None:
            return None
        given = self.book.take(worker, now_s)
        return None if given is None else Task(given, self._open.at, self._open.fraction_bits)

    def bundle_done(
        self, worker: WorkerKey, given: Given, loss_sum: float, code: int, now_s: float, lost: Collection[int] = ()
    ) -> Counted:
        """A worker has done with a bundle; returns whether it counts, and who need not do it any more.

        Args:
            loss_sum: over its examples.
            code: OK if all buckets have it; NOT_FINITE or OUT_OF_RANGE where one refused its gradient; else the worker
                gave it up.
            lost: buckets that have not what it needed.
        """
        now, counted = self.book.evaluation, Counted(False)
        if now is None or self._open is None or given[:2] != (now.number, now.attempt):
            return counted
        if lost:
            self._lost(lost)
        elif code and code not in GRADIENT_REFUSED:
            self.book.give_back(worker, given)
        elif code == ErrorCode.OUT_OF_RANGE and self._open.fraction_bits != FRACTION_BITS[-1]:
            place = self._place_evaluated
            self._refused[place] = self._refused.get(place, 0) + 1
            del self._numbers[place]
            self._close_evaluation()
        elif code or not isfinite(loss_sum):
            self._close_evaluation()
            self._journal.pop()
            for known in self._numbers, self._refused:
                known.pop(len(self._journal), None)
            for bucket in self._buckets:
                bucket.left = [one for one in bucket.left if one[0] < len(self._journal)]
            self._answer(inf)
        else:
            counted = self.book.done(worker, given, loss_sum, now_s)
            if self.book.is_complete:
                self._complete_evaluation()
        self._go_on()
        return counted

    def lost(self, buckets: Collection[int]) -> None:
        """These buckets have lost their scratch vectors: other servers serve them now."""
        if buckets and self._asked:
            self._lost(buckets)
            self._go_on()

    def answered(self, order: int, results: Sequence[BucketVectors], parts: Sequence[Sequence[Parts]] = ()) -> None:
        """An order has been carried out, or not, on each of its buckets.

        Args:
            results: in the order of its buckets.
            parts: of a round: for each `Reduce` what was found on the buckets with code OK.
        """
        sent = self._sent.pop(order, None)
        if sent is None:
            return  # of a history that was dropped
        lost: list[int] = []
        back = False
        for bucket, result in zip(sent.order.buckets, results, strict=True):
            known = self._buckets[bucket]
            known.counted |= sent.counts and result.code == 0  # what was found is right, whatever was lost since
            if known.life != sent.lives[bucket]:
                continue
            known.commit, known.commit_most = result.commit, max(result.commit, result.commit_most)
            back |= result.commit < self._commit - self._committing
            if result.code == ErrorCode.STALE_ROUND:
                self.rounds = max(self.rounds, result.round)
            elif result.code in (0, ErrorCode.SEQUENCE_GAP):
                self._carried_out(sent, bucket)
            else:
                lost.append(bucket)
        if sent.counts and any(result.code == 0 for result in results):
            self._reductions.add(parts)
        if back and not self._anew:
            self._restart()
        elif lost:
            self._lost(lost)
        self._go_on()

    # --- what follows -----------------------------------------------------------------------------------------------

    def _carried_out(self, sent: Sent, bucket: int) -> None:
        known = self._buckets[bucket]
        if isinstance(sent.order, OpenEvaluation):
            due = bool(known.left) and known.left[0][0] == sent.place
            if due and sent.order.evaluation == self._numbers.get(sent.place):
                self._evaluated.append(bucket)
        elif isinstance(sent.order, CarryOut):
            if sent.place < 0:
                known.point_made = known.life
            elif known.left and known.left[0][0] == sent.place:
                known.left.pop(0)

    def _go_on(self) -> None:
        """Sends what can be sent, once all that was sent before is answered."""
        while not self._sent and self.execution.stop_reason is None:
            if self._open is not None:
                return  # workers are at it
            behind = [number for number, bucket in enumerate(self._buckets) if bucket.left]
            if self._evaluated and set(self._evaluated) == set(behind):
                self._hand_out()
                return
            self._evaluated = []  # opening it again changes nothing
            if behind and self._must_catch_up(behind):
                self._catch_up(behind)
            elif not self._asked:
                self._ask()
            elif self._committing:
                self._send_commit()
            else:
                self._answer(self._reductions.numbers())

    def _ask(self) -> None:
        """Begins the present request."""
        request = self.execution.request
        self._asked = True
        entry: Entry
        match request:
            case Evaluate():
                entry = EvaluationEntry(request.at)
            case Round():
                self._reductions = Reductions(request.commands)
                entry = RoundEntry(request.commands)
            case _:
                self._commit += 1
                return
        for bucket in self._buckets:
            bucket.counted = False
            bucket.left.append((len(self._journal), entry))
        self._journal.append(entry)

    def _answer(self, value: float | list[float] | None) -> None:
        self._asked = False
        self.execution.answer(value)

    # --- orders -----------------------------------------------------------------------------------------------------

    @property
    def _committing(self) -> bool:
        return self._asked and isinstance(self.execution.request, Commit)

    def _send(self, make: Callable[[int], Order], place: int, counts: bool = False) -> None:
        self._order_number += 1
        order = make(self._order_number)
        lives = {bucket: self._buckets[bucket].life for bucket in order.buckets}
        self._sent[self._order_number] = Sent(order, lives, place, counts)
        self._orders.append(order)

    def _must_catch_up(self, behind: Sequence[int]) -> bool:
        """Whether those that are behind must do what they lost: not if it was for a commit that they have."""
        return not self._committing or any(self._buckets[bucket].commit < self._commit for bucket in behind)

    def _catch_up(self, behind: Sequence[int]) -> None:
        """Has buckets do the first thing of the journal that one of them has left."""
        place = min(self._buckets[bucket].left[0][0] for bucket in behind)
        buckets = [bucket for bucket in behind if self._buckets[bucket].left[0][0] == place]
        entry = self._buckets[buckets[0]].left[0][1]
        if isinstance(entry, EvaluationEntry):
            self._open_evaluation(entry, buckets, place)
            return
        last = place == len(self._journal) - 1 and self._asked and not self._committing
        groups: dict[tuple[Entry, bool], list[int]] = {}
        for bucket in buckets:
            known = self._buckets[bucket]
            groups.setdefault((known.left[0][1], last and not known.counted), []).append(bucket)
        for (one, counts), group in groups.items():
            assert isinstance(one, RoundEntry)
            self._round(group, one.commands, place, self._commit - 1 if self._committing else -1, counts)

    def _round(self, buckets: Sequence[int], commands: Sequence[Command], place: int, after: int, counts: bool) -> None:
        self.rounds += 1
        rest = self.rounds, tuple(commands), self._read_by(commands), after
        self._send(lambda order: CarryOut(order, tuple(buckets), *rest), place, counts)

    def _open_evaluation(self, entry: EvaluationEntry, buckets: Sequence[int], place: int) -> None:
        """Opens an evaluation: where others have it open, the same one, which changes nothing there."""
        request, ahead = self.execution.request, [b for b in buckets if self._buckets[b].commit_most == self._commit]
        if self._committing and isinstance(request, Commit) and ahead:
            left = where_left(entry.at, request.commands, self.execution.kept)
            ahead = [b for b in ahead if self._buckets[b].point_made != self._buckets[b].life]
            if not left:
                return self._restart()
            if ahead and left != entry.at:
                return self._round(ahead, (Set(entry.at, ((1.0, left),)),), -1, self._commit, counts=False)
        if place not in self._numbers:
            self.evaluations += 1
            self._numbers[place] = self.evaluations
        self._send(lambda order: self._order_to_open(order, buckets, place, entry), place)

    def _order_to_open(self, order: int, buckets: Sequence[int], place: int, entry: EvaluationEntry) -> OpenEvaluation:
        bits, bundles = FRACTION_BITS[self._refused.get(place, 0)], len(self.book.bundles)
        return OpenEvaluation(order, tuple(buckets), self._numbers[place], entry.at, bits, bundles, self.rounds)

    @property
    def _place_evaluated(self) -> int:
        return self._buckets[self._evaluated[0]].left[0][0]

    def _hand_out(self) -> None:
        """Has workers evaluate, once all buckets that were to open the evaluation have."""
        place = self._place_evaluated
        entry = self._journal[place]
        assert isinstance(entry, EvaluationEntry)
        self._open = self._order_to_open(0, range(self.buckets), place, entry)
        now, number = self.book.evaluation, self._open.evaluation
        if now is not None and now.number == number:
            self.book.again(self._workers)
        else:
            self.book.begin(number, self._workers)

    def _complete_evaluation(self) -> None:
        loss = self._latest_loss = self.book.loss_sum / self._examples
        for bucket in self._evaluated:
            self._buckets[bucket].left.pop(0)
        self._close_evaluation()
        if isinstance(self.execution.request, Evaluate) and not any(one.left for one in self._buckets):
            self._answer(loss)

    def _close_evaluation(self) -> None:
        self._open, self._evaluated = None, []

    def _send_commit(self) -> None:
        request = self.execution.request
        assert isinstance(request, Commit)
        buckets = [number for number, bucket in enumerate(self._buckets) if bucket.commit < self._commit]
        if not buckets:
            self._forget()
            self._anew, self.loss = False, self._latest_loss
            for bucket in self._buckets:
                bucket.left.clear()
            self._answer(None)
            return
        rest = self._commit, request.commands, self._read_by(request.commands), self._anew, self.rounds
        self._send(lambda order: CommitVectors(order, tuple(buckets), *rest), -1)

    def _read_by(self, commands: Sequence[Command]) -> int:
        return self.evaluations if ACCUMULATOR in inputs_of(commands) else 0

    # --- losses -----------------------------------------------------------------------------------------------------

    def _lost(self, buckets: Collection[int]) -> None:
        """Has buckets do again what they need of the journal."""
        if self._anew:  # they may have gone back once more, from a point or a commit that others have
            self._restart()
            return
        request = self.execution.request
        if self._committing:
            assert isinstance(request, Commit)
            again = needed_again(self._journal, inputs_of(request.commands))
        else:
            done = self._journal[:-1]
            again = needed_again(done, written(done) | self._wanted_now())
            again.append((len(done), self._journal[-1]))
        evaluations = [place for place, entry in again if isinstance(entry, EvaluationEntry)]
        last = max((p for p, entry in enumerate(self._journal) if isinstance(entry, EvaluationEntry)), default=-1)
        for number in buckets:
            self._buckets[number].life += 1
            self._buckets[number].left = list(again)
        self._close_evaluation()
        if len(evaluations) > 1 or any(place != last for place in evaluations):
            if self._committing and any(bucket.commit_most == self._commit for bucket in self._buckets):
                return self._restart()
            for place, _ in again:  # all buckets do it again, in new evaluations
                self._numbers.pop(place, None)
            for bucket in self._buckets:
                bucket.left = list(again)

    def _wanted_now(self) -> set[str]:
        """Returns what the present request reads."""
        request = self.execution.request
        assert request is not None
        return {request.at} if isinstance(request, Evaluate) else set(inputs_of(request.commands))

    def _forget(self) -> None:
        for known in self._journal, self._numbers, self._refused:
            known.clear()

    def _restart(self) -> None:
        """Drops the history: iterations are mixed, or cannot be made whole."""
        self.dropped.append(progress := self.execution.committed)
        self.execution = self._start(Progress({}, progress.evaluations, progress.further_trials))
        self._commit = max(self._commit, *(bucket.commit_most for bucket in self._buckets))
        self._forget()
        self._asked, self._anew = False, True
        self._close_evaluation()
        self._sent.clear()
        for bucket in self._buckets:
            bucket.begin_again(self._commit)
