"""Jobs that begin from a checkpoint: one that an earlier cluster's servers wrote, or a made one.

It is cut as the layout is now, or otherwise.

When each member has all of its buckets on its disk the checkpoint is removed, as `checkpoint_keep` would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from adamctl.config.records import RetiredRecord
from adamctl.errors import DamagedDataError
from adamctl.roles.ps import initial_values as building
from adamctl.roles.ps.checkpoint_files import (
    Checkpoint,
    FileDescriptor,
    ShardFile,
    ShardImage,
    ShardRecord,
    StoredShard,
)
from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryRecord
from adamctl.wire.constants import ErrorCode
from tests.sim.engine import ViolationError
from tests.sim.servers.ledger import GONE, done_of
from tests.sim.servers.shells.checkpoint import SimCheckpoints

if TYPE_CHECKING:
    from tests.sim.servers.cluster import ServerCluster
    from tests.sim.servers.shells.server import SimServer

FOLDER = "/checkpoints/1"
LOOK_EVERY_S = 0.1
EARLIER_S, EARLIER_S_MAX = 2.5, 20.0
WRITTEN_S = 1.0
"""Besides the loss window, for disks that are slow."""
MARKED_INCARNATION = 1 << 20
"""Of strangers who were forgotten where a checkpoint was written: more than any that the cluster will ever give out."""


class SimRestore:
    """The checkpoint that a job of a cluster begins from.

    Attributes:
        removed: it is there no more.
    """

    def __init__(self, cluster: ServerCluster, random: Random) -> None:
        self._cluster, self._random = cluster, random
        self.removed = False
        self._held_since_s: dict[tuple[str, int, int], float] = {}
        earlier = random.random() < 0.4
        images = _earlier(cluster, random) if earlier else _made(cluster, random)
        self.as_now = earlier or random.random() < 0.8
        self._checkpoint = self._put_together(images)
        for image in images:
            content = tuple(float(array[0]) for array in (image.values, *image.state))
            done = done_of(image.record.memory) if self.as_now else ()
            done = tuple((client, number) for client, number in done if client[0] != "steps" and number != GONE)
            cluster.ledger.begun.restored(image.record.shard, content, done)

    def _put_together(self, images: Sequence[ShardImage]) -> Checkpoint:
        """What `read_checkpoint` returns, of files that are nowhere."""
        cluster = self._cluster
        layout_hash = cluster.layout.hash if self.as_now else "of servers that were cut otherwise"
        states = ("squares",) if cluster.ledger.squares else ()
        descriptor = FileDescriptor("j", "p1", layout_hash, cluster.rule, states, cluster.layout.tensors)
        files = [_File(descriptor, [image for image in images if image.record.shard % 2 == odd]) for odd in (0, 1)]
        return Checkpoint(Path(FOLDER), cast("list[ShardFile]", files))

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Servers read it meanwhile."""
        original = building.read_checkpoint
        building.read_checkpoint = self._read  # type: ignore[assignment]
        try:
            yield
        finally:
            building.read_checkpoint = original

    def _read(self, folder: str) -> Checkpoint:
        if self.removed:
            raise DamagedDataError(f"checkpoint {folder} is not there")
        return self._checkpoint

    def look(self) -> None:
        """Removes it as soon as nobody can need it, which has to be so when the loss window has passed."""
        if all(self._on_disk(index) for index in self._cluster.invariants.records):
            self._cluster.world.note("world", "REMOVES", "the checkpoint that the job began from")
            self.removed = True
        else:
            self._cluster.world.after(LOOK_EVERY_S, self.look)

    def _on_disk(self, index: int) -> bool:
        """Says whether each member of a bucket has records of all its shards."""
        cluster = self._cluster
        members = [cluster.servers[node] for node in cluster.invariants.records[index].in_sync]
        shards = cluster.invariants.shards_of(index)
        return all(
            member.alive
            and len(found := member.owners_of(index)) == len(shards)
            and self._written(member, index, all(one.entry is not None and one.entry.sequence for one in found))
            for member in members
        )

    def _written(self, member: SimServer, index: int, written: bool) -> bool:
        """Says so; what is held is written by itself, whether anybody pushes to it or not."""
        now_s, ledger = self._cluster.world.now_s, self._cluster.ledger
        key = member.name, member.run, index
        since_s = max(self._held_since_s.setdefault(key, now_s), ledger.disks_well_s)
        well = member.ready and not (member.paused or member.disk_full or ledger.window_s is None)
        if written or not well:
            self._held_since_s.pop(key)
        elif now_s > since_s + (ledger.window_s or 0.0) + WRITTEN_S:
            raise ViolationError(f"what was restored is not written: bucket {index} at {member.name}")
        return written


class _File:
    """Stands for a `ShardFile`."""

    def __init__(self, descriptor: FileDescriptor, images: Sequence[ShardImage]) -> None:
        self.descriptor, self.path = descriptor, Path(FOLDER)
        self._images = {image.record.shard: image for image in images}
        arrays = 1 + len(descriptor.state_names)
        self.shards = [StoredShard(one.record, self.path, 0, one.values.size, arrays) for one in images]

    def read(self, stored: StoredShard) -> ShardImage:
        return self._images[stored.record.shard]


def _image(cluster: ServerCluster, shard: int, content: Sequence[float], memory: MemoryRecord, counter: int) -> Any:
    described = cluster.layout.shards[shard]
    record = ShardRecord(shard, described.tensor, described.row_start, described.row_stop, 3, counter, counter, memory)
    arrays = [np.full(described.size, value, np.float32) for value in content]
    return ShardImage(record, arrays[0], arrays[1:])


def _made(cluster: ServerCluster, random: Random) -> list[ShardImage]:
    """A checkpoint of another cluster, where some clients had the names that ours have, and others were forgotten."""
    images = []
    for shard in range(len(cluster.layout.shards)):
        content = [float(random.randint(1, 1000))] + [float(random.randint(1, 1000))] * cluster.ledger.squares
        clients = [ClientRecord("w9", 77, random.randint(1, 9))]
        for name in ("w1", "w2"):
            if random.random() < 0.7:  # incarnations begin again in each cluster
                last = random.randint(1, 9)
                refused = {last: int(ErrorCode.NOT_FINITE)} if random.random() < 0.3 else {}
                clients.append(ClientRecord(name, random.randint(4, 6), last, refused))
        evicted = (("w8", 78),) if random.random() < 0.5 else ()
        forgotten = MARKED_INCARNATION if random.random() < 0.5 else -1
        retired = RetiredRecord(MARKED_INCARNATION, (77,)) if random.random() < 0.3 else RetiredRecord()
        memory = MemoryRecord(tuple(clients), evicted, forgotten, random.choice((0, 57)), retired)
        images.append(_image(cluster, shard, content, memory, random.randint(9, 90)))
    return images


def _earlier(cluster: ServerCluster, random: Random) -> list[ShardImage]:
    """A checkpoint that the real shells of an earlier cluster have written, while pushes went on."""
    before = type(cluster)(random.getrandbits(32), 1, planted=None, keep_trace=False, special=False)
    before.rule, before.ledger.squares = cluster.rule, cluster.ledger.squares
    for clock in before.wild_clocks:
        clock.calm()
    checkpoints = _Kept(before, "j")
    with checkpoints.planted(), before.running():
        before.begin()
        before.world.run_until(EARLIER_S)
        checkpoints.begin()
        while len(checkpoints.images) < len(cluster.layout.shards) and before.world.now_s < EARLIER_S_MAX:
            before.world.run_until(before.world.now_s + LOOK_EVERY_S)
    if len(checkpoints.images) < len(cluster.layout.shards):
        raise ViolationError(f"an earlier cluster wrote no more than shards {sorted(checkpoints.images)}")
    return [checkpoints.images[shard] for shard in sorted(checkpoints.images)]


class _Kept(SimCheckpoints):
    """Keeps what is written."""

    def __init__(self, cluster: ServerCluster, job: str) -> None:
        super().__init__(cluster, job)
        self.images: dict[int, ShardImage] = {}

    def take(self, node: str, image: ShardImage) -> None:
        super().take(node, image)
        record = msgspec.msgpack.decode(msgspec.msgpack.encode(image.record), type=ShardRecord)
        self.images[record.shard] = ShardImage(record, image.values.copy(), [array.copy() for array in image.state])
