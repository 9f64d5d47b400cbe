"""What a simulated server keeps on its disk: which buckets, and their shards, in groups that take time to be synced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_copies import HeldShard
from adamctl.roles.ps.core_flush import Entry, FlushCore, Group, Item, Waiter
from adamctl.roles.ps.core_instructions import Image
from adamctl.roles.ps.core_job import ShardContent
from adamctl.roles.ps.core_replication_events import Build, Holds, LetGo, Load
from adamctl.roles.ps.core_shard import Shard
from tests.sim.sim_store import RECORD_BYTES, Held, Holding, StoredShard, Written

if TYPE_CHECKING:
    from tests.sim.sim_server import SimServer

STORE_TICK_S = 0.1


@dataclass(eq=False)
class _Taking:
    """Whom a shard's image is for: a record of a group."""

    group: Group
    item: Item


class ServerStore:
    """The store of one process, from what it found to what it is writing."""

    def __init__(self, server: SimServer, core: Core, flush: FlushCore) -> None:
        self._server, self._view, self._run = server, server.view, server.run
        self._core, self._flush = core, flush
        assert core.acknowledgements is not None
        self._acknowledgements = core.acknowledgements
        self._held = Held()
        self._held_entry = Entry(self._held, RECORD_BYTES)
        self._images: dict[int, Image] = {}
        self._gone: set[int] = set()

    # --- buckets ----------------------------------------------------------------------------------------------------

    def build(self, instruction: Build) -> None:
        job = self._core.jobs[instruction.job]
        contents = {
            index: [
                ShardContent(shard.index, np.zeros(shard.size, np.float32), job.rule.initial_state(shard.size))
                for shard in job.layout.shards_of(job.layout.buckets[index])
            ]
            for index in instruction.buckets
        }
        for index in instruction.buckets:
            self._held.buckets[index] = Holding(0, self._following(), True)
        self._server.do(self._server.replication.built(instruction.job, contents, self._server.clock.now()))

    def load(self, instruction: Load) -> None:
        job = self._core.jobs[instruction.job]
        contents = {index: self._server.found_bucket(job, index) for index in instruction.buckets}
        for index, found in contents.items():
            if found is not None:
                self._held.buckets[index] = self._server.found.holding[index]
        self._server.do(self._server.replication.loaded(instruction.job, contents, self._server.clock.now()))

    def hold(self, instruction: Holds) -> None:
        """A copy is held from now on: its shards are kept on disk, and so is that it is."""
        index = instruction.bucket
        known = self._held.buckets.get(index) or Holding(0, self._following(), False)
        self._held.buckets[index] = Holding(instruction.epoch, known.began, known.whole)
        self._changed_holding()
        for shard in self._server.owners_of(index):
            if shard.entry is None:
                shard.entry = Entry(shard, RECORD_BYTES)
            shard.entry.owner = shard

    def let_go(self, instruction: LetGo) -> None:
        self._held.buckets.pop(instruction.bucket, None)
        self._changed_holding()
        job = self._core.jobs.get(instruction.job)
        if job is not None:
            for one in self._core.forget_left(job):
                self._server.carry_out(one)

    def _following(self) -> int:
        """Returns the number of the first record that is not under way yet."""
        group = self._flush.group
        return self._number(self._flush.next_sequence + (len(group.items) if group is not None else 0))

    def _number(self, sequence: int) -> int:
        """Returns the number of a record: greater than any that a process before has written."""
        return self._run * 1_000_000 + sequence

    def _changed_holding(self) -> None:
        self._flush.changed(self._held_entry, self._server.clock.now(), 0)
        # Before any shard that somebody waits for.
        self._flush.wait(Waiter(None), self._held_entry, self._held_entry.changes)

    # --- groups -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        server = self._server
        if server.core is None:
            return
        self._view.after(STORE_TICK_S, self.tick)
        self._begin_group()
        if self._acknowledgements.held:
            server.do(self._acknowledgements.durable((), server.clock.now()))

    def kick(self) -> None:
        """Begins a group at once, if somebody waits for it."""
        if self._flush.urgent and self._flush.group is None:
            self._begin_group()

    def _begin_group(self) -> None:
        server, flush = self._server, self._flush
        group = flush.take(server.clock.now())
        if group is None:
            return
        self._images.clear()
        self._gone.clear()
        for item in group.items:
            owner = item.entry.owner
            if isinstance(owner, Shard):
                for instruction in self._core.image(_Taking(group, item), owner):
                    server.carry_out(instruction)
                continue
            image = server.replication.image(_Taking(group, item), owner) if isinstance(owner, HeldShard) else None
            if image is not None:
                self._images[item.sequence] = image
            elif isinstance(owner, HeldShard):
                self._gone.add(item.sequence)
            flush.taken(item)
        self._submit_if_whole(group)

    def take_image(self, image: Image) -> None:
        taking = image.token
        self._flush.taken(taking.item)
        self._images[taking.item.sequence] = image
        self._submit_if_whole(taking.group)

    def _submit_if_whole(self, group: Group) -> None:
        wanted = sum(isinstance(item.entry.owner, Shard | HeldShard) for item in group.items)
        if len(self._images) + len(self._gone) != wanted or self._flush.group is not group:
            return
        images, self._images = self._images, {}
        self._gone.clear()
        holding = None
        if any(isinstance(item.entry.owner, Held) for item in group.items):
            holding = dict(self._held.buckets)
        self._write(group, images, holding)

    def _write(self, group: Group, images: dict[int, Image], holding: dict[int, Holding] | None) -> None:
        """A sync takes its time; when the process dies meanwhile, what it wrote may be on disk all the same."""
        server, view = self._server, self._view
        full = server.disk_full
        survives = view.random.random() < 0.5
        due_s = 0.0002 + view.random.random() * server.disk_s_max

        def written() -> Written:
            shards = {
                image.shard.index: StoredShard(
                    self._number(sequence),
                    image.epoch,
                    image.counter,
                    image.pushes,
                    image.memory,
                    image.values.array.copy(),
                )
                for sequence, image in images.items()
            }
            return Written(shards, holding)

        def synced() -> None:
            if not full and (view.current or survives):
                server.disk.write(record if record is not None else written())
            if record is None:
                server.gate(view.run, lambda: self._finished(group, images, full))

        record = None
        if not server.sync_first:
            record = written()
            view.after(0.0, lambda: self._finished(group, images, full))
        view.world.after(due_s, synced)

    def _finished(self, group: Group, images: dict[int, Image], full: bool) -> None:
        now = self._server.clock.now()
        for image in images.values():
            image.release()
        waiters: list[Waiter] = []
        if full:
            self._flush.no_space(now)
        else:
            waiters = self._flush.finished([RECORD_BYTES] * len(group.items))
        self._server.do(self._acknowledgements.durable(waiters, now))
        self._begin_group()
