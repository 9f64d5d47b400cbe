"""Keeps a server's shards on disk: captures their state when the flush core asks for it, and writes it in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from adamctl.errors import AdamctlError, RunFailedError
from adamctl.roles.ps.core.flush import FlushConfig, FlushCore, Group, Item, Waiter
from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Image, Shard
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.store.lmdb_log import LogStore, NoSpaceError, UnconfirmedError, Writing
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import Holding, JobIdentity, ShardState
from adamctl.roles.ps.store.recovered_jobs import Held, found_jobs
from adamctl.roles.ps.store.writer_thread import WriterThread

TICK_S_MAX = 0.25
TICK_S_MIN = 0.01
SHRINK_FACTOR = 3
SHRINK_BYTES = 16 << 20
SHRINK_AGAIN_S = 300.0
"""How long a log that could not be shrunk stays as it is: on a full disk every try costs a copy, and others' space."""
CLOSE_DEADLINE_S = 20.0


class StoreWriter:
    """The store of one server. Everything except the writing itself runs on the event loop.

    Attributes:
        flush: decides what is written when.
        holdings: which job each record in the log belongs to.
        degraded: why nothing becomes durable at the moment; empty if all is well.
    """

    def __init__(
        self, store: LogStore, config: FlushConfig, log: logging.Logger, fail: Callable[[AdamctlError], None]
    ) -> None:
        """`fail` ends the server with an error."""
        found, slots = found_jobs(store.found)
        store.found = ()
        self.flush = FlushCore(config, slots, store.next_sequence)
        self.store = store
        self.degraded = ""
        self._log, self._fail = log, fail
        self._loop = asyncio.get_running_loop()
        self.holdings = Holdings(found, store.loaded, self.flush, self._loop.time, self.kick)
        self._images: dict[int, Image] = {}
        self._tick_s = min(max(config.window_s / 20, TICK_S_MIN), TICK_S_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._thread = WriterThread("store")
        self._writing_group: asyncio.Task[None] | None = None
        self._closed = False
        self._shrink_from_s = 0.0
        self._ending = asyncio.Event()

    def start(self, core: ServerCore, carry_out: Callable[[list[Instruction]], None]) -> None:
        """Starts to write what `core` changes; `carry_out` carries out the core's instructions."""
        self._core, self._carry_out = core, carry_out
        self._tick()

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def hold(self, identity: JobIdentity, buckets: dict[int, int]) -> None:
        """Records that this server holds `buckets` (-> epoch); returns when that is on disk, or if the disk is full."""
        waiter, held = Waiter(None), self.holdings.take(identity, buckets)
        self.flush.wait(waiter, held.entry, held.entry.changes)
        self.kick()
        while waiter.missing and not self.flush.full and not self._closed and not held.entry.gone:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S_MIN)

    # --- groups -----------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Starts to write at once if there are waiters."""
        if self.flush.urgent and self.flush.group is None:
            self._begin()

    def _tick(self) -> None:
        if self._closed:
            return
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        self._begin()
        if self._core.acknowledgements is not None and self._core.acknowledgements.held:
            self._carry_out(self._core.acknowledgements.durable((), self._loop.time()))

    def _begin(self) -> None:
        if self._closed:
            return
        group = self.flush.take(self._loop.time())
        if group is None:
            return
        self._images.clear()
        for item in group.items:
            owner = item.entry.owner
            if item.copy_of or not isinstance(owner, Shard | HeldShard):
                self.flush.taken(item)
                continue
            take = partial(self._took, group, item)
            if isinstance(owner, Shard):
                image = self._core.image(owner, take)
            else:
                image = owner.image()
                assert image is not None, "a shard without a state has no record"
            if image is not None:
                take(image)
        self._submit_if_whole(group)

    def _took(self, group: Group, item: Item, image: Image) -> None:
        """Notes a shard's image, which is its current state; submits the group once it has all images."""
        self.flush.taken(item)
        self._images[item.sequence] = image
        self._submit_if_whole(group)

    def _submit_if_whole(self, group: Group) -> None:
        wanted = sum(isinstance(item.entry.owner, Shard | HeldShard) and not item.copy_of for item in group.items)
        if len(self._images) == wanted and self.flush.group is group:
            writings = [self._writing(item) for item in group.items]
            images = list(self._images.values())
            self._images = {}
            self._writing_group = self._loop.create_task(self._write_group(writings, group.first, images))

    def _writing(self, item: Item) -> Writing:
        if item.copy_of:
            return Writing(item.sequence, copy_of=item.copy_of)
        owner = item.entry.owner
        if isinstance(owner, Held):
            return Writing(item.sequence, Holding(owner.identity, dict(owner.buckets), set(owner.received)))
        image = self._images[item.sequence]
        arrays = [image.values.array, *image.state.arrays]
        changed = () if item.whole else tuple(sorted(item.arrays))
        if changed:
            arrays = [arrays[place] for place in changed]
        item.version = (image.epoch, image.counter, image.pushes)
        state = ShardState(
            item.entry.job,
            image.shard.index,
            image.values.array.size,
            len(arrays),
            image.epoch,
            image.counter,
            image.pushes,
            image.memory,
            changed,
        )
        return Writing(item.sequence, state, arrays)

    def _finished(self, written: tuple[list[int], float]) -> None:
        if self.degraded:
            self._log.info("the disk has space again: %s", self.store.path)
            self.degraded = ""
        self._settle(self.flush.finished(*written))
        self._begin()

    def _settle(self, waiters: list[Waiter]) -> None:
        assert self._core.acknowledgements is not None
        self._carry_out(self._core.acknowledgements.durable(waiters, self._loop.time()))

    def _no_space(self, error: NoSpaceError) -> None:
        if not self.degraded:
            self._log.error("no space left on the disk; nothing becomes durable until some is freed: %s", error)
        self.degraded = f"no space left: {error}"
        self.flush.no_space(self._loop.time())
        self.holdings.renumber()
        self._settle([])

    def _stalled(self, error: UnconfirmedError) -> None:
        """Keeps the group current until there is space to make it durable."""
        self._log.error("no space left on the disk; nothing becomes durable until some is freed: %s", error)
        self.degraded = f"no space left: {error}"
        self.flush.stalled()
        self._settle([])

    def _failed(self, error: AdamctlError) -> None:
        """Stops serving all jobs: the disk's state is unknown, so nothing may be acknowledged any more."""
        self._closed = True
        for name in tuple(self._core.jobs):
            self._carry_out(self._core.remove_job(name))
        self._fail(error)

    # --- the thread -------------------------------------------------------------------------------------------------

    async def _write_group(self, writings: list[Writing], first: int, images: list[Image]) -> None:
        try:
            written = await self._write(writings, first, images)
        except NoSpaceError as error:  # kept in a variable, it would keep this frame, and both the group, until the
            _release(images)  # garbage collector runs
            self._no_space(error)
        except AdamctlError as error:
            _release(images)
            self._failed(error)
        except Exception as error:
            self._log.exception("a group could not be written")
            _release(images)
            self._failed(RunFailedError(f"{self.store.path}: {type(error).__name__}: {error}"))
        else:
            self._finished(written)

    async def _write(self, writings: list[Writing], first: int, images: list[Image]) -> tuple[list[int], float]:
        """Returns the records' sizes and the seconds taken; 0 if the time says nothing about the disk's speed."""
        try:
            return await self._loop.run_in_executor(self._thread, self._write_now, writings, first, images)
        except UnconfirmedError as error:
            self._stalled(error)
            while not await self._ends_within(self.flush.config.retry_s):
                with suppress(NoSpaceError):
                    await self._loop.run_in_executor(self._thread, self.store.confirm)
                    return error.sizes, 0.0  # most of the time was spent waiting for space
            raise NoSpaceError(str(error)) from error  # the server is closing

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)
        return self._ending.is_set()

    def _write_now(self, writings: list[Writing], first: int, images: list[Image]) -> tuple[list[int], float]:
        """Blocking."""
        began_s = self._loop.time()
        sizes = self.store.write(writings, first, lambda: self._post(_release, images))
        seconds = self._loop.time() - began_s
        large = self.store.file_bytes > SHRINK_FACTOR * max(self.flush.log_bytes, SHRINK_BYTES)
        if large and self._loop.time() >= self._shrink_from_s:
            try:
                self.store.shrink(self.flush.log_bytes)
            except NoSpaceError as error:
                self._shrink_from_s = self._loop.time() + SHRINK_AGAIN_S
                self._log.warning("could not shrink the log, tried again in %.0f s: %s", SHRINK_AGAIN_S, error)
        return sizes, seconds

    def _post(self, function: Callable[[Any], None], argument: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits for this any more
            self._loop.call_soon_threadsafe(function, argument)

    async def close(self) -> None:
        """Writes everything that is not durable yet, within a deadline, and closes the log."""
        until_s = self._loop.time() + CLOSE_DEADLINE_S
        self.flush.hurry()
        while not self._closed and self.flush.busy and not self.flush.full and self._loop.time() < until_s:
            self._begin()
            await asyncio.sleep(TICK_S_MIN)
        await self.abandon()

    def give_up(self) -> None:
        """Starts no further group, because memory may be damaged."""
        self._closed = True

    async def abandon(self) -> None:
        """Closes the log after the current group; other changes that are not durable are lost."""
        self._closed = True
        self._ending.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._writing_group is not None:
            await asyncio.wait((self._writing_group,), timeout=CLOSE_DEADLINE_S)
        if self._writing_group is None or self._writing_group.done():
            self._thread.shutdown()
            self.store.close()

    # --- status -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status`."""
        flush, acknowledgements = self.flush, self._core.acknowledgements
        assert acknowledgements is not None
        return {
            "folder": str(self.store.folder),
            "degraded": self.degraded,
            "log_bytes": flush.log_bytes,
            "live_bytes": flush.live_bytes,
            "file_bytes": self.store.file_bytes,
            "loss_window_s": flush.window_s(self._loop.time()),
            "loss_window_s_max": flush.window_s_allowed,
            "loss_window_bytes": flush.unsaved_bytes,
            "loss_window_bytes_max": flush.config.window_bytes,
            "records": flush.records,
            "record_bytes": flush.record_bytes,
            "rewritten_bytes": flush.rewritten_bytes,
            "updates_per_record": flush.updates / max(flush.records, 1),
            "pushes_waiting": acknowledgements.waiting,
            "pushes_held_back": acknowledgements.held,
            "jobs_not_served": {identity.name: found.size_bytes for identity, found in self.holdings.found.items()},
            "copies_kept": {one.name: len(found.holding.buckets) for one, found in self.holdings.found.items()},
        }


def _release(images: list[Image]) -> None:
    for image in images:
        image.release()
    images.clear()
