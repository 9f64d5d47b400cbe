"""One job on one parameter server: its layout, the buckets held here, statistics (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule
from adamctl.model.layout import Bucket, ParameterLayout
from adamctl.model.rule import VECTORS
from adamctl.roles.ps.core.buffers import State, Values
from adamctl.roles.ps.core.exactly_once import ClientKey, ClientMemory
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.shard import BucketState, Shard
from adamctl.roles.ps.core.shard_vectors import ShardVectors
from adamctl.wire.constants import UpdateKind

STALENESS_MAX = 256  # the histogram's last column counts this and more

KINDS: Mapping[str, frozenset[int]] = {"add": frozenset({UpdateKind.DELTA, UpdateKind.FACTORS})}
"""The kinds of update a rule takes; other rules take all kinds. Factors under `add` are factors of a delta."""

KINDS_OF_GRADIENT_RULES = frozenset({UpdateKind.GRADIENT, UpdateKind.FACTORS, UpdateKind.DELTA})


@dataclass(frozen=True)
class ShardContent:
    """A shard's initial content: flat values and state, and, from a checkpoint or the store, its version and memory.

    `epoch`: of the record in the store, 0 if there is none.
    """

    index: int
    values: Array
    state: list[Array]
    counter: int = 0
    pushes: int = 0
    memory: ClientMemory | None = None
    epoch: int = 0


class Job:
    """One job.

    Attributes:
        rule: applies the updates.
        has_vectors: commands change its vectors; it takes no pushes.
        identity: distinguishes this job from others of the same name, for the shell.
        epochs: every bucket of the job -> the highest epoch we know of.
        buckets: those that are ready here, with this server as primary.
        building: those that are being built -> the epoch under which they will be served.
        shards: the shards of `buckets`, by index.
        failed: (code, message) if the buckets could not be made, or values in them were lost.
        staleness: histogram of applied shard pushes by staleness: pushes of other clients since their base.
        gradient_ages: likewise by age, which also counts the client's own.
        updates: parameter updates applied, as Adam 4.3.2 counts them.
        refusals: error code -> shard pushes that were queued and then refused.
        durable: pushes are acknowledged when they are on disk.
        rolled_back: shard -> number of acknowledged pushes that a restart has lost.
        rolled_back_of: client -> how many of those are its own, over all shards.
        left: entries of shards that are no longer held here, for the owner of the log.
        orphaned: shards that are no longer held here but have unanswered parts of a step.
        refusing, short: buckets that accept neither pushes nor pulls now, or no pushes -> why.
        taking: buckets assigned to this server but not here yet, besides those in `building`.
        leased: some bucket has other copies that may take over, so it is served only while this server's lease holds.
    """

    def __init__(self, name: str, layout: ParameterLayout, rule: Rule, identity: Any = None) -> None:
        self.name, self.layout, self.rule, self.identity = name, layout, rule, identity
        self.layout_hash = layout.hash
        self.kinds = KINDS.get(rule.name, KINDS_OF_GRADIENT_RULES)
        self.has_vectors = rule.name == VECTORS
        self.epochs: dict[int, int] = {}
        self.buckets: dict[int, BucketState] = {}
        self.building: dict[int, int] = {}
        self.shards: dict[int, Shard] = {}
        self.failed: tuple[int, str] | None = None
        self.staleness = [0] * (STALENESS_MAX + 1)
        self.gradient_ages = [0] * (STALENESS_MAX + 1)
        self.updates = self.pushes = 0
        self.refusals: Counter[int] = Counter()
        self.durable = False
        self.rolled_back: dict[int, int] = {}
        self.rolled_back_of: dict[ClientKey, int] = {}
        self.left: list[Entry] = []
        self.orphaned: list[Shard] = []
        self.refusing: dict[int, str] = {}
        self.short: dict[int, str] = {}
        self.taking: set[int] = set()
        self.leased = False

    @property
    def ready(self) -> bool:
        """Whether all that is to be served here is here."""
        return self.placed and not self.building and not self.taking and self.failed is None

    @property
    def placed(self) -> bool:
        """Whether it is known where the buckets are to be."""
        return bool(self.epochs)

    def begin(self, bucket: int, epoch: int) -> None:
        """Notes that a bucket is being built here, to be served under an epoch."""
        self.epochs[bucket] = max(epoch, self.epochs.get(bucket, 0))
        self.building[bucket] = epoch

    def install(self, bucket: Bucket, contents: Iterable[ShardContent], threads: int) -> None:
        """Starts to serve a bucket and redistributes all shards over the apply threads."""
        state = BucketState(bucket.index, self.building.pop(bucket.index))
        self.buckets[bucket.index] = state
        for content in contents:
            described = self.layout.shards[content.index]
            shard = Shard(content.index, described.tensor, described.row_start, described.row_stop, state)
            shard.size = described.size
            shard.row_size = self.layout.tensors[described.tensor].row_size
            shard.values = Values(content.values, shard)
            shard.state = State(content.state)
            shard.counter, shard.pushes = content.counter, content.pushes
            shard.given = self.layout.tensors[described.tensor].distribution == "given"
            shard.memory = content.memory or ClientMemory()
            if self.has_vectors:
                shard.vectors = ShardVectors(shard.counter, self.rule.state_names)
            self.shards[content.index] = shard
        self._stripe(threads)

    def drop(self, bucket: int) -> None:
        """Stops serving a bucket; queued updates are answered as stale when their batch completes."""
        self.building.pop(bucket, None)
        state = self.buckets.pop(bucket, None)
        if state is not None:
            state.dropped = True
            described = self.layout.buckets[bucket]
            for index in range(described.shard_start, described.shard_stop):
                shard = self.shards.pop(index, None)
                if shard is not None and shard.entry is not None:
                    self.left.append(shard.entry)
                if shard is not None and shard.steps is not None:
                    self.orphaned.append(shard)

    def drop_all(self) -> None:
        for bucket in tuple(self.buckets):
            self.drop(bucket)

    def give_up(self, code: int, why: str) -> None:
        """Stops serving all buckets and refuses all further requests."""
        self.failed = (code, f"job {self.name!r}: {why}")
        self.drop_all()

    def go_on_from(self, index: int, client: ClientKey, number: int) -> Shard | None:
        """After a restart that lost acknowledged pushes, continues with a client's next number on a shard.

        No number up to this one will be sent again: the client knows the outcome of each. Returns the shard if its
        memory has changed; that makes a new version, since copies may have the previous one. Does nothing while a batch
        is in progress; the client then gets a gap and attaches again.
        """
        shard = self.shards.get(index)
        entry = shard.memory.find(client) if shard is not None else None
        if shard is None or entry is None or entry.accepted != entry.done or number <= entry.done:
            return None
        if shard.batch is not None:
            return None
        self.rolled_back[index] = self.rolled_back.get(index, 0) + number - entry.done
        self.rolled_back_of[client] = self.rolled_back_of.get(client, 0) + number - entry.done
        shard.counter += 1
        shard.memory.accept(entry, number)
        shard.memory.settle(entry, number, 0, shard.counter)
        return shard

    def _stripe(self, threads: int) -> None:
        """Gives each thread a contiguous range of shards of about equal total size."""
        total = sum(shard.size for shard in self.shards.values())
        passed = 0
        for index in sorted(self.shards):
            shard = self.shards[index]
            shard.thread = min(threads * (2 * passed + shard.size) // (2 * total), threads - 1)
            passed += shard.size

    @property
    def size_bytes(self) -> int:
        """Bytes of values, rule state and scratch in memory, without spare buffers."""
        return sum(shard.size for shard in self.shards.values()) * self.rule.served_bytes

    def count_staleness(self, staleness: int, age: int) -> None:
        self.staleness[staleness if staleness < STALENESS_MAX else STALENESS_MAX] += 1
        self.gradient_ages[age if age < STALENESS_MAX else STALENESS_MAX] += 1

    def staleness_quantile(self, share: float) -> int:
        """Returns the lowest staleness that at least this share of applied pushes does not exceed."""
        return quantile(self.staleness, share)


def quantile(histogram: list[int], share: float) -> int:
    """Returns the lowest index at which the cumulative histogram reaches a share of its total; 0 if empty."""
    needed = share * sum(histogram)
    passed = 0
    for index, count in enumerate(histogram):
        passed += count
        if count and passed >= needed:
            return index
    return 0
