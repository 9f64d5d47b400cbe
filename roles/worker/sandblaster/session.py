"""One worker's part in a batch algorithm's run (DistBelief 4.2, Sandblaster): bundles in, gradients to the servers.

`BundleWork` decides; this reads, pulls, pushes and reports. Examples stay in memory from one evaluation to the next, as
far as there is room. The session ends when the coordinator says that the run has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from adamctl.errors import RunFailedError
from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.operation import Array
from adamctl.roles.data.client.data_client import new_arrays
from adamctl.roles.worker.core.bundle_work import PASS, READS_MAX, BundleWork, Held, Pull, portions_of
from adamctl.roles.worker.core.example_memory import ExampleMemory, Span
from adamctl.roles.worker.sandblaster.executor import BundleExecutor, WholeExecutor
from adamctl.roles.worker.sandblaster.held_out import HeldOutWork
from adamctl.roles.worker.sandblaster.threads import Bundle, BundleDone
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.messages import NextBundlesReply, NextBundlesRequest

POLL_S = 5.0
EMPTY_PAUSE_S = 0.05
"""Before it asks again after an answer that came at once and said nothing."""
IDLE_S = 0.02
"""A worker that has all it may hold soon reports something; if not, it waits for news."""
LEAVE_S = 5.0
"""How long a worker that leaves waits for its pushes, so that what it has done need not be done again."""
EXAMPLES_BYTES_MAX = 1 << 30


class SandblasterRunner:
    """Runs one session to its end. Everything happens on the event loop except what its executor's threads do.

    Attributes:
        over: the coordinator has said that the run is over.
        bundles, pushes, abandoned: how many were computed, counted by all servers, and given up.
    """

    def __init__(
        self, session: Session, examples_bytes_max: int = EXAMPLES_BYTES_MAX, executor: BundleExecutor | None = None
    ) -> None:
        """Args:
        examples_bytes_max: of decoded examples, beyond those that are worked on.
        executor: who computes bundles; None: threads of this process.
        """
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._executor: BundleExecutor = WholeExecutor(session) if executor is None else executor
        self._executor.takes(self._put)
        memory = ExampleMemory(session.dataset.form.scaled_bytes, examples_bytes_max)
        self._work = BundleWork(self._executor.parallel, memory)
        self._examples: dict[Span, tuple[Array, Answers]] = {}
        self._reading = asyncio.Semaphore(READS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._latest: NextBundlesRequest | None = None  # the last one, while it is not answered
        self._held_out = HeldOutWork(session, self._executor, self.status)
        self._bundles_over = False
        self._failure: BaseException | None = None
        self.over, self._reason = False, ""
        self.bundles = self.pushes = self.abandoned = self.pulls = 0
        self._began_s = self._computed_until_s = self._loop.time()
        self.compute_s = self.wait_s = 0.0
        self._examples_done = 0

    async def run(self, stopping: asyncio.Event) -> str:
        """Works until the run ends or `stopping` is set; returns the reason.

        Raises:
            RunFailedError: a thread or a network activity failed; the cause is chained.
            UnreachableError: the coordinator or a server is gone.
        """
        self._executor.start()
        self._begin(self._evaluate)
        self._begin(self._held_out.give_signs)
        stop = asyncio.create_task(stopping.wait())
        try:
            return await self._serve(stop)
        finally:
            stop.cancel()
            await self._close()

    # --- the coordinator ---------------------------------------------------------------------------------------------

    async def _serve(self, stop: asyncio.Task[bool]) -> str:
        idle = True
        while True:
            if self._failure is not None:
                raise self._failure
            if self.over:
                return self._reason
            self._ask_if_due(idle)
            news = asyncio.create_task(self._news.wait())
            timeout_s = IDLE_S if self._latest is None and not self._bundles_over else None
            happened, _ = await asyncio.wait({stop, news}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            idle = not happened
            news.cancel()
            self._news.clear()
            if stop.done():
                await self._leave()
                return "stopped"

    def _ask_if_due(self, idle: bool) -> None:
        """Reports, and asks for bundles, as soon as there is reason to; else keeps a request waiting, for news.

        Once the program has stopped, there is nothing more to ask for.

        A new request has the one before answered, so it asks for all. While one waits that asks for any, there are
        none to be had.
        """
        if self._bundles_over:
            return
        waits_for_some = self._latest is not None and self._latest.wanted > 0
        wants = self._work.wanted > 0 and not waits_for_some
        if self._work.has_news or wants or (idle and self._latest is None):
            self._latest = self._request(self._work.wanted, POLL_S)
            self._begin(partial(self._ask, self._latest))

    def _request(self, wanted: int, wait_s: float, leaving: bool = False) -> NextBundlesRequest:
        session, (reports, lost) = self._session, self._work.take_reports()
        return NextBundlesRequest(
            session.node, session.incarnation, wanted, wait_s, reports, lost, leaving, session.group_epoch
        )

    async def _ask(self, request: NextBundlesRequest) -> None:
        began_s = self._loop.time()
        reply = await self._session.coordinator.next_bundles(request)
        self._take(reply)
        if request is not self._latest:
            return
        says_nothing = not (reply.tasks or reply.cancelled or reply.ended)
        if says_nothing and self._loop.time() - began_s < EMPTY_PAUSE_S:
            await asyncio.sleep(EMPTY_PAUSE_S)
        if request is self._latest:
            self._latest = None
        self._news.set()

    def _take(self, reply: NextBundlesReply) -> None:
        if reply.ended:
            self._bundles_over = True
            self._news.set()
        else:
            self._work.take(reply)
            self._advance()

    async def _leave(self) -> None:
        self._work.abandon()
        if self._pushing:
            await asyncio.wait(set(self._pushing), timeout=LEAVE_S)
        session = self._session
        await session.coordinator.next_bundles(self._request(0, 0.0, leaving=True))
        await session.coordinator.leave(session.node, session.incarnation, (), group_epoch=session.group_epoch)

    async def _evaluate(self) -> None:
        """Evaluates on the held-out split, until the run is over."""
        self._reason = await self._held_out.run()
        self.over = True
        self._news.set()

    # --- what is to be done ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begins what can begin now."""
        work = self._work
        dropped, reads = work.memory.take_dropped(), work.take_reads()
        if dropped or reads:
            self._executor.reads(reads, dropped)
        for span in dropped:
            self._examples.pop(span, None)
        for span in reads:
            self._begin(partial(self._read, span))
        pull = work.to_pull()
        if pull is not None:
            self._begin(partial(self._pull, pull))
        for held in work.to_compute():
            portions = portions_of(held.task, self._session.batch)
            self._executor.submit(Bundle(held, portions, *self._examples[held.span]))
        if work.has_news:
            self._news.set()

    def _begin(self, activity: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Runs an activity until it ends or the session does; its failure ends the session."""
        task = asyncio.create_task(self._guarded(activity))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, activity: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await activity()
            self._advance()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self.fail(failure)

    async def _read(self, span: Span) -> None:
        session = self._session
        images, labels = new_arrays(span.examples, session.dataset.input_shape, session.dataset.form)
        async with self._reading:
            await session.data.read(session.dataset, "train", PASS, span.start, span.stop, (images, labels))
        self._examples[span] = images, session.dataset.form.answers(images, labels)
        self._work.arrived(span)

    async def _pull(self, pull: Pull) -> None:
        lost = await self._executor.pull(pull)
        if lost:
            self._work.pull_refused(lost)
        else:
            self.pulls += 1
            self._work.pulled()

    async def _push(self, held: Held, gradient: int) -> None:
        refused = await self._executor.push(held, gradient)
        self.pushes += not refused
        self._work.pushed(held, refused)

    # --- what comes back ---------------------------------------------------------------------------------------------

    def _put(self, done: BundleDone) -> None:
        """Called by any thread. Drops what comes after the loop was closed: the session is over."""
        try:
            self._loop.call_soon_threadsafe(self._done, done)
        except RuntimeError:
            return

    def _done(self, done: BundleDone) -> None:
        if done.failure is not None:
            self.fail(done.failure)
            return
        held = done.bundle.held
        self.compute_s += done.compute_s
        self.wait_s += done.wait_s
        self._computed_until_s = self._loop.time()
        if self._work.computed(held, done.loss_sum, done.compute_s, done.wait_s):
            self.bundles += 1
            self._examples_done += held.span.examples
            push = self._begin(partial(self._push, held, done.gradient))
            self._pushing.add(push)
            push.add_done_callback(self._pushing.discard)
        else:
            self.abandoned += 1
            self._executor.free(done.gradient)
        self._advance()
        self._news.set()  # there is room for another one

    def fail(self, failure: BaseException) -> None:
        """Ends the session with a failure."""
        if self._failure is None:
            self._failure = failure if isinstance(failure, Exception) else RunFailedError(repr(failure))
        self._news.set()

    async def _close(self) -> None:
        self._work.abandon()
        await self._executor.halt()
        while self._tasks:  # one that ends well may have begun another
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._examples.clear()
        self._executor.close()

    @property
    def trained_s(self) -> float:
        """Seconds from the session's beginning to the last bundle that was computed."""
        return self._computed_until_s - self._began_s

    def status(self) -> dict[str, object]:
        busy_s = self.compute_s + self.wait_s
        return {
            "state": "evaluating" if self._work.busy else "waiting",
            "job": self._session.job,
            "threads": self._session.threads,
            "batches": self._executor.portions_done,
            "bundles": self.bundles,
            "abandoned": self.abandoned,
            "pushes": self.pushes,
            "fetches": self.pulls,
            "example_bytes": self._work.memory.used_bytes,
            "transport": ", ".join(sorted(set(filter(None, self._session.parameters.transports().values())))),
            "waiting_share": self.wait_s / busy_s if busy_s else 0.0,
            "computed": [(round(self.compute_s, 6), self._examples_done)],
            **self._executor.status(),
        }
