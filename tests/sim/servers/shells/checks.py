"""What must hold of a simulated server after every step, and of all that it answers, takes in and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Batch, Shard
from adamctl.roles.ps.core.shard_message import decode_body
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.store.record import ShardState
from adamctl.wire.messages import AttachRequest, Message, PullReply, PushReply, PushResult
from tests.sim.engine import ViolationError
from tests.sim.servers.ledger import done_of
from tests.sim.servers.shells.state import ServerState

if TYPE_CHECKING:
    from tests.sim.processes.loop import SimLoop
    from tests.sim.servers.shells.server import SimServer


class ServerChecks(ServerState):
    """See the module. A violation inside a shell is told when its step is over: shells catch much."""

    peers: Mapping[str, SimServer]
    loop: SimLoop

    def begin_checks(self) -> None:
        self._violation: BaseException | None = None
        self._served: dict[int, int] = {}  # bucket -> at which epoch it is served, or was last
        self._serving: set[int] = set()

    def violated(self, text: str) -> None:
        """Something that must hold does not."""
        self._keep(ViolationError(text))

    def shell_failed(self, error: BaseException, what: str) -> None:
        """A shell has let an error out, or caught one that it did not expect."""
        if isinstance(error, (ViolationError, AssertionError)):
            self._keep(error)
        else:
            failure = ViolationError(f"a shell has failed: {self.name}, {what}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._keep(failure)

    def _keep(self, error: BaseException) -> None:
        self._violation = self._violation or error
        if not self.loop.is_running():
            self._tell()

    def _tell(self) -> None:
        if self._violation is not None:
            raise self._violation

    def holds_good(self, check: Callable[[], None]) -> None:
        """Makes a check inside a shell."""
        try:
            check()
        except ViolationError as error:
            self._keep(error)

    # --- after every step -------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """Who serves what now, and what has become of it."""
        self._tell()
        if self.core is None:
            return
        job, until_s = self.job, self.serving()
        # Without a lease it answers nobody, whatever it has taken over: a late answer may have completed that.
        leased = {index for index, true_s in until_s.items() if true_s > self.world.now_s}
        for index in leased - self._serving:
            assert job is not None
            self.world.note(self.name, "serves", "bucket", index)
            epoch = job.buckets[index].epoch
            if self._served.get(index) != epoch:  # else it had only stopped, to hand it over or without a lease
                self.invariants.began_to_serve(self, index, epoch)
                for shard in self.owners_of(index):
                    self._check(shard)
            self._served[index] = epoch
        self._serving = leased
        self.invariants.serves(self, until_s)

    def watch_batches(self, core: ServerCore) -> None:
        """Looks at each new version as soon as it is there, whoever applied it."""
        completed = core.completed

        def check(job: Job, batches: list[Batch], now: float) -> list[Instruction]:
            out = completed(job, batches, now)
            for batch in batches:
                if batch.applied and not batch.shard.bucket.dropped:
                    self.holds_good(lambda shard=batch.shard: self._check(shard))  # type: ignore[misc]
            return out

        core.completed = check  # type: ignore[method-assign]

    def _check(self, held: Shard | HeldShard) -> None:
        ledger = self.invariants.ledger
        if isinstance(held, Shard):
            version = (held.bucket.epoch, held.counter)
            arrays = (held.values.array, *held.state.arrays)
            ledger.holds(self.name, held.index, version, arrays, done_of(held.memory))
        elif held.copy is not None:
            version = (held.copy.epoch, held.copy.counter)
            ledger.holds(self.name, held.index, version, held.arrays, done_of(held.memory.record()))

    def check_taken(self, body: bytes) -> None:
        """States of shards have come with a request: each copy is one that there was."""
        if not body or self.core is None:
            return
        for record in decode_body(memoryview(body)):
            held = self.owner_of(record.copy.shard)
            if isinstance(held, HeldShard):
                self._check(held)

    def check_written(self, state: ShardState, arrays: Sequence[Array]) -> None:
        """A record of a shard is made: it is of one state that there was."""
        done = done_of(state.memory)
        version = (state.epoch, state.counter)
        self.invariants.ledger.holds(f"{self.name}'s store", state.shard, version, arrays, done)

    # --- answers ----------------------------------------------------------------------------------------------------

    def answers(self, message: Message) -> None:
        """Something is answered."""
        if isinstance(message, PushReply):
            done = [result for result in message.results if not result.code]
            self.holds_good(lambda: self._answers(result.shard for result in done))
            self.holds_good(lambda: self._acknowledges(done))
        elif isinstance(message, PullReply):
            self.holds_good(lambda: self._answers(part.shard for part in message.parts if not part.code))

    def _answers(self, shards: Iterable[int]) -> None:
        """Only a primary whose lease holds answers (I1), unless nobody else has a copy; epochs alone are safe, too."""
        if self.lease.valid():
            return
        layout = self.invariants.layout
        for index in {layout.bucket_of_shard[shard] for shard in shards}:
            if len(self.invariants.records[index].in_sync) > 1:
                raise ViolationError(f"an answer without a lease: {self.name}, bucket {index}")

    def _acknowledges(self, results: Sequence[PushResult]) -> None:
        """What is acknowledged has been prepared by every member of the record that we know (I3)."""
        invariants, job = self.invariants, self.job
        if invariants.ledger.acks == "applied" or job is None:
            return
        for result in results:
            index = job.layout.bucket_of_shard[result.shard]
            record, bucket = invariants.records[index], job.buckets.get(index)
            if bucket is None or record.primary != self.name or record.epoch != bucket.epoch:
                continue
            for node in record.in_sync:
                member = self.peers[node]
                held = member.owner_of(result.shard) if node != self.name else None
                if not isinstance(held, HeldShard) or not member.lived_since(invariants.record_revisions[index]):
                    continue
                if held.version[1] < result.version:
                    found = f"shard {result.shard} at {result.version}, {node} has {held.version}"
                    raise ViolationError(f"acknowledged, and not prepared by a member: {found}")

    def check_attached(self, client: ClientKey, message: AttachRequest, body: bytes, serve: Callable[[], None]) -> None:
        """A client says what it knows to be done: nothing is passed over that need not be."""
        settled = np.frombuffer(body, "<i8").reshape(-1, 2).tolist()
        job = self.core.jobs.get(message.job) if self.core is not None else None
        before = {index: _done(job, index, client) for index, _ in settled} if job is not None else {}
        serve()
        for index, found in before.items():
            after = _done(job, index, client)
            if after > found:
                self.invariants.ledger.passed_over(self.name, index, client, found + 1, after)
                assert job is not None
                self._check(job.shards[index])  # a memory that has changed is a version of its own


def _done(job: Job | None, index: int, client: ClientKey) -> Any:
    shard = job.shards.get(index) if job is not None else None
    return shard.memory.sequence(client) if shard is not None else 0
