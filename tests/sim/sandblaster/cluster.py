"""Where the buckets of a simulated batch run are, who asks for them, and what copies and stores have of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeAlias

from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.roles.ps.core.shard import Shard
from tests.sim.engine import ViolationError, World
from tests.sim.sandblaster.servers import Call, Kept, SimServer, make_buckets
from tests.sim.sandblaster.truth import Piece, Problem

ATTEMPT_S = 0.3
LATE_S, LATE_MOST = 2.0, 30
"""Within how long, and how often, a message arrives again that comes late."""
STORED_MOST = 3
Make: TypeAlias = Callable[[dict[int, int]], tuple[Call, type]]
"""Makes the request for buckets with these epochs; the type is that of its message."""


class Cluster:
    """All servers.

    Attributes:
        primary, epochs: of each bucket.
        in_sync: servers that have all acknowledged commits of a bucket, its primary included.
        kept: server -> shard -> what its copy has.
        stored: shard -> what the store had lately, if there is one copy only.
        history: how often the coordinator has dropped it.
        histories: commit -> of which history it is.
        late_share: of commits that arrive once more, much later.
        trap: kind of work whose server dies with it, and how many pieces of it are done before.
    """

    def __init__(self, world: World, copies: int, names: Sequence[str], shards_each: int, goes_back: bool) -> None:
        self.world, self.copies, self.goes_back = world, copies, goes_back
        self.layout = make_buckets(shards_each)
        pieces, start = [], 0
        for shard in self.layout.shards:
            row_size = self.layout.tensors[shard.tensor].row_size
            pieces.append(Piece(start, start + shard.size, row_size))
            start += shard.size
        self.problem = Problem(world.random, pieces)
        execution = self.problem.execution(None)
        self.rule = RuleConfig(VECTORS, kept=execution.kept[1:], scratch=execution.scratch)
        self.names, self.slow_s = list(names), 0.002
        self.servers: dict[str, SimServer] = {}
        self.trap: tuple[str, int] | None = None
        self._late = Random(world.random.getrandbits(32))
        self.late_share = self._late.choice((0.0, 0.0, 0.5, 1.0))
        self.lives = self.history = 0
        self.histories: dict[int, int] = {}
        self.start({})

    @property
    def buckets(self) -> range:
        return range(len(self.layout.buckets))

    def shards(self, bucket: int) -> range:
        described = self.layout.buckets[bucket]
        return range(described.shard_start, described.shard_stop)

    def start(self, contents: dict[int, Kept]) -> None:
        """Starts all servers, with initial values where there is nothing else."""
        for server in self.servers.values():
            server.kill()
        initial = {}
        for index, piece in enumerate(self.problem.pieces):
            state = tuple(self.problem.start[piece.start : piece.stop] * 0 for _ in self.rule.kept)
            initial[index] = Kept(self.problem.start[piece.start : piece.stop].copy(), state, 0, 0)
        contents = initial | contents
        self.servers = {name: SimServer(self, name, self.rule) for name in self.names}
        self.primary = [self.names[bucket % len(self.names)] for bucket in self.buckets]
        self.lives += 1
        self.epochs = [self.lives * 1000 for _ in self.buckets]
        others = self.names if self.copies > 1 else []
        self.in_sync = [{*others, self.primary[bucket]} for bucket in self.buckets]
        self.kept = {name: dict(contents) for name in self.names}
        self.stored = {index: [kept] for index, kept in contents.items()}
        for bucket in self.buckets:
            self.servers[self.primary[bucket]].serve(bucket, self.epochs[bucket], contents)

    def work_s(self) -> float:
        """Returns how long a piece of work takes."""
        return self.slow_s * self.world.random.random()

    def trapped(self, server: SimServer, kind: str) -> bool:
        """Whether a server dies with this piece of work."""
        if self.trap is None or self.trap[0] != kind or not self.may_die(server.name):
            return False
        self.trap = (kind, self.trap[1] - 1) if self.trap[1] else None
        if self.trap is not None:
            return False
        self.world.after(0.0, lambda: self.died(server))
        return True

    def live_shards(self) -> dict[int, Shard]:
        """Returns the shards at their primaries."""
        found: dict[int, Shard] = {}
        for bucket in self.buckets:
            shards = self.servers[self.primary[bucket]].job.shards
            found |= {index: shards[index] for index in self.shards(bucket) if index in shards}
        return found

    def send_late(self, is_commit: bool, arrive: Callable[[], None]) -> None:
        """A message may arrive again, much later: its server had stood still, or a connection."""
        if self._late.random() < (self.late_share if is_commit else self.late_share / 20):
            for _ in range(self._late.randint(1, LATE_MOST)):
                self.world.after(LATE_S * self._late.random(), arrive)

    # --- copies and stores --------------------------------------------------------------------------------------------

    def ship(self, server: SimServer, shard: Shard) -> None:
        """A shard has changed: its copies, or its store, get it, each for itself."""
        bucket, kept = shard.bucket.index, Kept.of(shard)
        epoch = shard.bucket.epoch
        if self.copies == 1:
            self.stored[shard.index] = [*self.stored[shard.index], kept][-STORED_MOST:]
            return
        for name in self.names:
            if name != server.name:
                delay_s = self.world.random.random() * self.world.random.choice((0.002, 0.05, 0.2))
                self.world.after(delay_s, lambda name=name: self._shipped(name, bucket, epoch, shard.index, kept))  # type: ignore[misc]

    def _shipped(self, name: str, bucket: int, epoch: int, index: int, kept: Kept) -> None:
        if epoch != self.epochs[bucket] or not self.servers[name].alive:
            return
        if kept.counter > self.kept[name][index].counter:
            self.kept[name][index] = kept
        self.servers[self.primary[bucket]].copies_have()

    def copies_have(self, primary: str, index: int, counter: int) -> bool:
        bucket = self.layout.bucket_of_shard[index]
        others = self.in_sync[bucket] - {primary}
        return all(self.kept[name][index].counter >= counter for name in others)

    def may_die(self, name: str) -> bool:
        """Whether nothing that was acknowledged is lost with a server, but where a store has it."""
        if not self.servers[name].alive:
            return False
        return self.copies == 1 or all(len(in_sync - {name}) > 0 for in_sync in self.in_sync)

    def kill(self, name: str) -> None:
        if self.may_die(name):
            self.servers[name].kill()
            self.died(self.servers[name])

    def died(self, server: SimServer) -> None:
        """It is found out later; until then nobody answers."""
        name = server.name
        for bucket in self.buckets:
            if self.copies > 1:
                self.in_sync[bucket].discard(name)
        for other in self.servers.values():
            other.copies_have()
        self.world.after(0.05 + 0.5 * self.world.random.random(), lambda: self._replace(server))

    def _replace(self, server: SimServer) -> None:
        name, random = server.name, self.world.random
        if self.servers[name] is not server:
            return  # all was started again
        self.servers[name] = SimServer(self, name, self.rule)
        for bucket in self.buckets:
            if self.primary[bucket] == name:
                self.take_over(bucket, random.choice(sorted(self.in_sync[bucket])))
            elif self.copies > 1:
                self.join(bucket, name)

    def take_over(self, bucket: int, name: str) -> None:
        """Another process serves a bucket, with what was kept of it."""
        if not self.servers[name].alive:
            return
        old = self.primary[bucket]
        self.servers[old].job.drop(bucket)
        if self.copies == 1:
            self._restore(bucket, name)
        self.primary[bucket] = name
        self.epochs[bucket] += 1
        self.world.note(name, "serves", bucket, self.epochs[bucket])
        self.servers[name].serve(bucket, self.epochs[bucket], self.kept[name])
        if self.copies > 1:
            self.in_sync[bucket] = {name}
            for other in self.names:
                if other != name:
                    self.join(bucket, other)

    def _restore(self, bucket: int, name: str) -> None:
        """A store has lost what was not synced, of each shard as much as it happened."""
        for index in self.shards(bucket):
            stored = self.stored[index]
            if self.goes_back and self.world.random.random() < 0.5:
                del stored[self.world.random.randint(1, len(stored)) :]
            self.kept[name][index] = stored[-1]

    def join(self, bucket: int, name: str) -> None:
        """A copy gets a bucket from its primary, after a while."""
        epoch = self.epochs[bucket]

        def gets() -> None:
            primary = self.servers[self.primary[bucket]]
            if epoch != self.epochs[bucket] or not self.servers[name].alive or not primary.alive:
                return
            shards = [primary.job.shards[index] for index in self.shards(bucket)]
            if any(shard.batch is not None for shard in shards):
                self.world.after(0.003, gets)
                return
            for shard in shards:
                self.kept[name][shard.index] = Kept.of(shard)
            self.in_sync[bucket].add(name)

        self.world.after(0.02 + 0.2 * self.world.random.random(), gets)


class Ask:
    """One request to some buckets, sent again until each has answered for good (`VectorClient`, `BundlePush`)."""

    def __init__(
        self, cluster: Cluster, who: str, buckets: Iterable[int], make: Make,
        take: Callable[[Any, set[int]], set[int]], done: Callable[[], None], lives: Callable[[], bool],
    ) -> None:  # fmt: skip
        """
        Args:
            take: is given an answer and the buckets that were asked; returns those that have answered for good.
            lives: whether whoever asks still does.
        """
        self._cluster, self._who, self._left = cluster, who, set(buckets)
        self._make, self._take, self._done, self._lives = make, take, done, lives
        self._attempt = 0
        self._send()

    def _send(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        if not self._lives():
            return
        if not self._left:
            self._done()
            return
        self._attempt += 1
        attempt = self._attempt
        by_server: dict[str, set[int]] = {}
        for bucket in self._left:
            by_server.setdefault(cluster.primary[bucket], set()).add(bucket)
        waits = set(by_server)
        for name, buckets in sorted(by_server.items()):
            server = cluster.servers[name]
            call, kind = self._make({bucket: cluster.epochs[bucket] for bucket in sorted(buckets)})
            check_sender(self._who, kind)

            def answered(answer: Any, name: str = name, buckets: set[int] = buckets) -> None:
                if attempt != self._attempt or name not in waits or not self._lives():
                    return
                waits.discard(name)
                self._left -= self._take(answer, buckets)
                if not waits:
                    self._attempt += 1
                    world.after(0.0 if not self._left else 0.02, self._send)

            def reply(answer: Any, name: str = name, take: Callable[..., None] = answered) -> None:
                world.send(name, self._who, lambda: take(answer))

            is_commit = kind.__name__ == "CommitRequest"
            arrive = lambda server=server, call=call, reply=reply, is_commit=is_commit: server.receive(  # noqa: E731
                self._who, call, reply, is_commit
            )
            world.send(self._who, name, arrive)
            cluster.send_late(is_commit, arrive)
        world.after(ATTEMPT_S, lambda: self._send() if attempt == self._attempt else None)


def check_sender(who: str, kind: type) -> None:
    """The coordinator moves no vector."""
    commands = ("EvaluateRequest", "RoundRequest", "CommitRequest")
    if (who == "coordinator") != (kind.__name__ in commands):
        raise ViolationError(f"a request that is not for it to make: {who} sends {kind.__name__}")
