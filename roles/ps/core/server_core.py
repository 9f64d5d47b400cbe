"""The parameter server as a pure state machine: requests and completed batches in, instructions out.

Every decision is made here, on one thread. What takes long (rules, sending, files) is done elsewhere on an instruction
and reported back as an event. A push is settled when all its parts are applied or refused; `Acknowledgements` says
whether it is answered then or when it is durable.

Pulls are never torn and usually not copied: the live buffer is sent itself. A batch that starts while the buffer is
being read is applied into another one; a pull that arrives while a batch is being applied in place waits for it, and so
gets the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, not_known
from adamctl.roles.ps.core.acknowledge import Acknowledgements
from adamctl.roles.ps.core.admission import (
    LOST,
    NO_LEASE,
    RECOVERS,
    HeldBytes,
    UnknownJobs,
    attach_refusal,
    attached,
    no_pushes,
    not_now,
)
from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.exactly_once import NOBODY, ClientKey, Verdict
from adamctl.roles.ps.core.flush import FlushCore
from adamctl.roles.ps.core.instructions import AnswerPush, Apply, Instruction, Keep, Recover, Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.pull import MOVED, answer_waiting, finish_pull, gather
from adamctl.roles.ps.core.push import Place, Push, Source, Token, Update
from adamctl.roles.ps.core.replication import Replication
from adamctl.roles.ps.core.shard import Batch, Image, Pull, Shard
from adamctl.roles.ps.core.sync_steps import StepPart
from adamctl.roles.ps.core.validate import check_epochs, checked_source, part_problem, plain_problem, shard_refusal
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import (
    AttachRequest,
    PullRequest,
    PushPart,
    PushReply,
    PushRequest,
    PushResult,
)

CLIENTS_HELD = 4  # so many of whose steps none is ever complete fill the queue


class ServerCore:
    """All jobs of one server.

    Attributes:
        jobs: by name.
        queued_bytes: bodies of pushes with parts not yet applied, at most `queue_bytes_max` (and one body more).
        held: of them, what waits for steps to be complete.
        flush, acknowledgements: of the store's log; None without a store.
        unknown: what is answered about jobs that are not in `jobs`.
        retired: incarnations that shards forget when their next batch is done.
        replication: copies of buckets elsewhere, and of others' buckets here; it sets `lease_holds`.
    """

    def __init__(self, threads: int, queue_bytes_max: int = 1 << 30, flush: FlushCore | None = None) -> None:
        self.threads = threads
        self.flush = flush
        self.acknowledgements = Acknowledgements(flush) if flush is not None else None
        self.jobs: dict[str, Job] = {}
        self.queued_bytes = 0
        self.queued_updates = 0
        self._queue_bytes_max = queue_bytes_max
        self.held = HeldBytes(queue_bytes_max // CLIENTS_HELD)
        self._attached: dict[int, set[str]] = {}
        self.unknown = UnknownJobs()
        self.retired = NOBODY
        self.replication: Replication | None = None
        self.lease_holds: Callable[[], bool] = lambda: True

    def wait_for_copies(self) -> None:
        """Some bucket has copies: from now on answers of pushes may wait for them."""
        if self.acknowledgements is None:
            self.acknowledgements = Acknowledgements(self.flush)
        self.acknowledgements.lease_holds = self.lease_holds

    # --- attach ------------------------------------------------------------------------------------------------------

    def attach(
        self,
        token: Token,
        connection: int,
        client: ClientKey,
        request: AttachRequest,
        now: float,
        settled: Iterable[tuple[int, int]] = (),
    ) -> list[Instruction]:
        """A client binds its connection to a job. `now` in seconds of any steady clock.

        `settled`: (shard, number) where the client was told of every number so far what became of it.
        """
        job = self.jobs.get(request.job)
        if job is None:
            return [self.unknown.refuse(token, request.job, now)]
        refusal = attach_refusal(token, job, request)
        if refusal is not None:
            return [refusal]
        self._attached.setdefault(connection, set()).add(job.name)
        return attached(token, job, client, settled, now, self.flush, self.replication)

    def disconnected(self, connection: int) -> None:
        self._attached.pop(connection, None)

    def add_job(self, job: Job) -> None:
        self.jobs[job.name] = job
        self.unknown.known(job.name)

    def remove_job(self, name: str) -> list[Instruction]:
        """Frees a job; what is being applied is finished and answered as stale."""
        job = self.jobs.pop(name, None)
        if job is not None:
            job.drop_all()
        for jobs in self._attached.values():
            jobs.discard(name)
        return self.forget_left(job) if job is not None else []

    def forget_left(self, job: Job) -> list[Instruction]:
        """Frees the records of shards that are no longer held, and refuses those who wait for them."""
        out: list[Instruction] = []
        orphaned, job.orphaned = job.orphaned, []
        for shard in orphaned:
            for update in shard.steps.let_go() if shard.steps is not None else ():
                if not update.superseded:
                    update.code = ErrorCode.STALE_EPOCH
                self._finish(job, shard, update, 0.0, out)
        if self.flush is None or self.acknowledgements is None:
            return out
        left, job.left = job.left, []
        waiters = [waiter for entry in left for waiter in self.flush.leave(entry)]
        what = f"job {job.name!r} is no longer held here in full; what was pushed may not be durable"
        out.extend(self.acknowledgements.fail_waiters(waiters, ErrorCode.NOT_READY, what))
        return out

    def find(self, token: Token, connection: int, name: str, now: float) -> Job | Refuse:
        job = self.jobs.get(name)
        if job is None:
            return self.unknown.refuse(token, name, now)
        if job.failed is not None and not job.buckets:
            return Refuse(token, *job.failed)
        if name not in self._attached.get(connection, ()):
            return Refuse(token, ErrorCode.LAYOUT_MISMATCH, f"attach to job {name!r} on this connection first")
        if job.leased and not self.lease_holds():
            return Refuse(token, ErrorCode.NOT_READY, NO_LEASE)
        return job

    # --- push --------------------------------------------------------------------------------------------------------

    def push(
        self,
        token: Token,
        connection: int,
        client: ClientKey,
        request: PushRequest,
        body: memoryview,
        now: float,
        arriving: ArrivingPush | None = None,
    ) -> list[Instruction]:
        """Takes in a push: every part is queued, answered, or refused for itself.

        `arriving`: what has become of it while it arrived.
        """
        job = self.find(token, connection, request.job, now)
        if isinstance(job, Refuse):
            return [job]
        if (job.refusing or job.short) and (refusal := not_now(token, job, request.epochs, True)):
            return [refusal]
        if job.has_vectors:
            return [no_pushes(token)]
        if arriving is not None and arriving.job is not job:
            return [Refuse(token, ErrorCode.NOT_READY, f"job {job.name!r} was made again while this arrived; retry")]
        if self.crowded and not request.step:  # a part of a step may be what all the others wait for
            return [Refuse(token, ErrorCode.OVER_QUOTA, f"{self.queued_bytes} bytes of updates wait; retry later")]
        if not self.held.admits(job, client, request):
            return [self.held.refuse(token, client)]
        out: list[Instruction] = []
        if arriving is None:
            push = Push(token, request.learning_rate, body, len(request.parts))
            sources = [checked_source(job, push, header) for header in request.sources]
        else:
            push, sources = arriving.push, arriving.sources
            push.token = token
            push.remaining -= 1
        if request.region:
            push.held_bytes = 0
        if request.step:
            push.place = Place(request.step, request.step_part, request.step_parts)
        check_epochs(job, request.epochs, push.routing, out)
        touched: list[Shard] = []
        for position, part in enumerate(request.parts):
            if push.results[position] is not None:  # applied while the rest was on its way
                continue
            shard = self.accept(job, push, position, part, sources, client, request.epochs)
            if shard is not None:
                touched.append(shard)
        if push.queued:
            self.queued_bytes += push.held_bytes
            if any(shard.steps is not None and shard.steps.step for shard in touched):
                self.held.take(client, push)
            out.append(Keep(token))
        self._start(job, touched, out)
        if not push.remaining:
            self._answer(job, push, now, out)
            job.pushes += arriving is not None and arriving.touched
        return out

    @property
    def crowded(self) -> bool:
        """Whether so much waits that pushes are refused for now."""
        waits = self.acknowledgements is not None and self.acknowledgements.crowded
        return waits or self.queued_bytes > self._queue_bytes_max

    def accept(
        self,
        job: Job,
        push: Push,
        position: int,
        part: PushPart,
        sources: list[Source],
        client: ClientKey,
        epochs: dict[int, int],
    ) -> Shard | None:
        """Queues one part, or settles its result; returns its shard if it was queued."""
        shard = job.shards.get(part.shard)
        if shard is None or epochs.get(shard.bucket.index) != shard.bucket.epoch:
            code, message = shard_refusal(job, part.shard, epochs)
            push.settle(position, PushResult(part.shard, code, 0, 0, 0, message))
            return None
        entry = shard.memory.find(client)
        if entry is None:
            message = "this client was forgotten here, so its pushes can no longer be told apart; register again"
            push.settle(position, shard.result(ErrorCode.CLIENT_EVICTED, message))
            return None
        verdict = entry.judge(part.sequence)
        if verdict is Verdict.NEXT:
            source = sources[part.source] if 0 <= part.source < len(sources) else None
            shard.memory.accept(entry, part.sequence)
            if push.place is None:
                base = (part.base_pushes, part.base_sequence)
                update = Update(push, position, source, entry, part.sequence, base)
                problem = plain_problem(shard, part, source)
                if problem is not None:
                    update.refuse(*problem)
                shard.queue.extend([update] if shard.steps is None else shard.steps.in_turn(update))
            else:
                of_step = StepPart(push, position, source, entry, part.sequence)
                shard.queue.extend(shard.take_part(of_step, push.place, part_problem(shard, part, source)))
            self.queued_updates += 1
            push.queued = True
            return shard
        if verdict is Verdict.GAP:
            message = f"expected number {entry.accepted + 1}; found {part.sequence}"
            push.settle(position, shard.result(ErrorCode.SEQUENCE_GAP, message))
        elif verdict is Verdict.DONE:
            code = (entry.refused or {}).get(part.sequence, 0)
            push.settle(position, shard.result(code, "refused before" if code else ""))
            shard.hold_back(push, job.durable)
        else:
            queued = shard.find_queued(entry, part.sequence)
            if queued.waiters is None:
                queued.waiters = []
            queued.waiters.append((push, position))
        return None

    def _start(self, job: Job, shards: list[Shard], out: list[Instruction]) -> None:
        """Makes batches of what waits for idle shards; one instruction per thread."""
        by_thread: dict[int, list[Batch]] = {}
        for shard in shards:
            if shard.batch is None and shard.queue:
                shard.batch = Batch(shard)
                by_thread.setdefault(shard.thread, []).append(shard.batch)
        out.extend(Apply(job, thread, batches) for thread, batches in by_thread.items())

    def completed(self, job: Job, batches: list[Batch], now: float = 0.0) -> list[Instruction]:
        """An apply thread has carried out batches of one job."""
        if self.flush is not None and any(batch.damaged and not batch.shard.bucket.dropped for batch in batches):
            return [Recover(f"job {job.name!r}: {RECOVERS}")]  # whoever is not answered asks again
        out: list[Instruction] = []
        shipped: list[Shard] = []
        for batch in batches:
            shard = batch.shard
            shard.batch = None
            if batch.applied:
                shard.advance(batch)
            elif not batch.in_place and shard.spare is None:
                shard.spare = batch.target
            if shard.replica is not None:
                shard.counter += not batch.applied  # the memory has changed
                shipped.append(shard)
            if shard.steps is not None:
                shard.steps_done(batch)
            if self.flush is not None and shard.entry is not None:
                self.flush.changed(shard.entry, now, len(batch.updates))
            for update in batch.updates:
                self._finish(job, shard, update, now, out)
            shard.memory.retire(self.retired, shard.counter)
            if batch.damaged:
                batch.spoil()
            answer_waiting(job, shard, LOST if batch.damaged else "", self.lease_holds, out)
        damaged = {batch.shard.bucket.index for batch in batches if batch.damaged}
        if damaged:
            out.extend(self.give_up(job, damaged))
        if shipped and self.replication is not None:
            out.extend(self.replication.changed(job, shipped))
        self._start(job, [batch.shard for batch in batches], out)
        return out

    def give_up(self, job: Job, damaged: set[int]) -> list[Instruction]:
        """Serves damaged buckets no more, nor any bucket of the job if one of them has no other copy."""
        left = self.replication.abandon(job, damaged) if self.replication is not None else []
        if not damaged.isdisjoint(job.buckets):
            job.give_up(ErrorCode.INTERNAL, LOST)
        return [*left, *self.forget_left(job)]

    def _finish(self, job: Job, shard: Shard, update: Update, now: float, out: list[Instruction]) -> None:
        """Settles one update that has come out of its batch, for whoever asked for it."""
        self.queued_updates -= 1
        staleness = age = 0
        shard.memory.settle(update.client, update.sequence, update.code, shard.counter)
        if update.code:
            job.refusals[update.code] += 1
        elif not update.superseded:
            staleness, age = shard.passed(update)
            shard.pushes += 1
            job.count_staleness(staleness, age)
            header = update.source.header if update.source is not None else None
            factors = header is not None and header.kind == UpdateKind.FACTORS
            job.updates += shard.size * (header.examples if header is not None and factors else 1)
        bucket = shard.bucket
        if bucket.dropped:
            known = job.epochs.get(bucket.index, 0)
            version = 0 if update.code else shard.counter
            result = PushResult(shard.index, ErrorCode.STALE_EPOCH, known, version, 0, MOVED)
        else:
            result = PushResult(shard.index, update.code, bucket.epoch, shard.counter, staleness, update.message, age)
        for push, position in ((update.push, update.position), *(update.waiters or ())):
            push.settle(position, result)
            shard.hold_back(push, job.durable)
            if not push.remaining:
                self._answer(job, push, now, out)
                job.pushes += push.queued

    def _answer(self, job: Job, push: Push, now: float, out: list[Instruction]) -> None:
        if push.queued:
            self.queued_bytes -= push.held_bytes
            self.held.give_back(push)
        results = tuple(result for result in push.results if result is not None)
        answer = AnswerPush(push.token, PushReply(results, push.routing), push.queued)
        if self.acknowledgements is None:
            out.append(answer)
        elif push.copies is None and not job.leased:
            out.extend(self.acknowledgements.take(answer, push.stored, job, now))
        else:
            out.extend(self.acknowledgements.take_copies(answer, push.stored, push.copies or (), job, now))

    # --- pull and image ----------------------------------------------------------------------------------------------

    def pull(
        self, token: Token, connection: int, client: ClientKey, request: PullRequest, now: float
    ) -> list[Instruction]:
        """Answers with the values of each shard at one version, now or when batches applied in place are done."""
        job = self.find(token, connection, request.job, now)
        if isinstance(job, Refuse):
            return [job]
        if job.refusing and (refusal := not_now(token, job, request.epochs, False)):
            return [refusal]
        if request.dtype not in WIRE_ELEMENT_BYTES:
            return [Refuse(token, ErrorCode.WRONG_DTYPE, not_known(request.dtype))]
        out: list[Instruction] = []
        pull = Pull(token, client, [None] * len(request.shards), [None] * len(request.shards), dtype=request.dtype)
        check_epochs(job, request.epochs, pull.routing, out)
        if gather(job, pull, request):
            out.append(finish_pull(pull))
        return out

    def image(self, shard: Shard, take: Callable[[Image], None]) -> Image | None:
        """Returns a shard's whole state at one version; while it is held, pushes go on on copies.

        None if a batch is in progress: `GiveImage` gives the image to `take` when it is done.
        """
        if shard.batch is None:
            return shard.image()
        shard.image_takers.append(take)
        return None
