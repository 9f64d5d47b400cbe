"""Clients of parameter servers: numbers per shard, several pushes in flight, retries, and the way to a new primary.

They follow the protocol of `roles/ps/client/{delivery,server_channel}.py` without its event loop: a server applies only
the next number of a shard, so after any trouble the oldest unfinished envelope goes first and alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from adamctl.config.records import BucketRecord, bucket_key, decode
from adamctl.model.layout import ParameterLayout
from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import Read
from adamctl.roles.ps.client.delivery import GAPS_MAX, LATER, MOVED, REQUEST_LATER
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Refuse as ServerRefuse
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import (
    PullReply,
    PullRequest,
    PushPart,
    PushReply,
    PushRequest,
    PushSource,
)
from tests.sim.controllers.clients import Caller
from tests.sim.engine import ViolationError
from tests.sim.processes.process import RunView
from tests.sim.servers.clients.lanes import Envelope, Lane, Lanes, Reply, Served
from tests.sim.servers.ledger import Ledger

WINDOW = 6
DELTA_MAX = 9
NOT_FINITE = 0.04
"""How often a part of a push is no number."""


class SimPushClient:
    """One client, incarnation and all, of one job.

    Attributes:
        key: whom the servers take it for; `name` is the process's.
        connections: numbers of those that the process makes.
        issued: the last number of each shard.
        open: push -> shards that are not answered.
        numbers: of the open pushes -> by shard.
        acknowledged, pulled: what has been answered so far.
        goes_on: whether it begins new pushes.
        gave_up: a server has said that the job has failed; `lost_for_good` is called then.
        evicted: called when a server has forgotten this client.
        settled: called when all of a push is answered.
    """

    def __init__(
        self,
        world: RunView,
        key: ClientKey,
        caller: Caller,
        layout: ParameterLayout,
        job: str,
        servers: Mapping[str, Served],
        ledger: Ledger,
        connections: Iterator[int],
    ) -> None:
        self.world, self.key, self.caller, self.job = world, key, caller, job
        self.name, self.connections = world.process.name, connections
        self.layout, self.servers, self.ledger = layout, servers, ledger
        self.issued = [0] * len(layout.shards)
        self.epochs: dict[int, int] = {}
        self.primary: dict[int, str] = {}
        self.lanes = Lanes(self)
        self.pause_s_max = 0.05
        self.acknowledged = self.pulled = 0
        self.goes_on = True
        self.gave_up = False
        self.lost_for_good: Callable[[], None] = lambda: None
        self.evicted: Callable[[], None] = lambda: None
        self.settled: Callable[[], None] = lambda: None
        self.open: dict[int, set[int]] = {}
        self.numbers: dict[int, dict[int, int]] = {}
        self._pushes = self._orders = 0
        self._reading = False
        self.trouble = ""

    # --- routing ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        if not self.primary:
            self.reread()
            self.world.after(0.2, self.begin)
            return
        random = self.world.random
        if self.wants():
            if random.random() < 0.12:
                self._pull()
            else:
                self._push()
        self.world.after(random.random() * self.pause_s_max, self.begin)

    def wants(self) -> bool:
        """Says whether it may have something to push."""
        return self.goes_on and len(self.open) < WINDOW

    def channel(self, push: int) -> int:
        """Returns by which of several ways to one server a push goes."""
        return 0

    def reread(self) -> None:
        """Reads who holds what, once for all who ask at the same time."""
        if self._reading:
            return
        self._reading = True

        def done(answer: Answer | Refuse | None) -> None:
            self._reading = False
            if isinstance(answer, Answer):
                self._take_routing({entry.key: entry.value for entry in answer.entries or ()})

        self.caller.call(lambda token: Read(token, f"/jobs/{self.job}"), done, 3.0)

    def take_known(self, known: list[tuple[int, int]]) -> None:
        """Counts on from what a server remembers of us."""
        for shard, number in known:
            self.issued[shard] = self.issued[shard] or number

    def _take_routing(self, values: dict[str, bytes]) -> None:
        keys = {bucket.index: bucket_key(self.job, bucket.index) for bucket in self.layout.buckets}
        if any(key not in values for key in keys.values()):
            return
        for index, key in keys.items():
            record = decode(values[key], BucketRecord)
            self.epochs[index], self.primary[index] = record.epoch, record.primary
        for lane in self.lanes.all():
            for envelope in list(lane.unfinished.values()):
                if envelope.idle:
                    self._reroute(lane, envelope)
            self.pump(lane)

    def home(self, shard: int) -> str:
        """Returns who serves a shard, as far as we know."""
        return self.primary[self.layout.bucket_of_shard[shard]]

    # --- pushes -----------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        random = self.world.random
        count = len(self.layout.shards)
        shards = random.sample(range(count), random.choice((1, 2, 2, 4, count)))
        self._pushes += 1
        numbers: dict[int, int] = {}
        for shard in sorted(shards):
            self.issued[shard] += 1
            numbers[shard] = self.issued[shard]
            delta = 0 if random.random() < NOT_FINITE else random.randint(1, DELTA_MAX)
            self.ledger.issued(self.key, shard, numbers[shard], delta)
        self.open[self._pushes] = set(numbers)
        self.numbers[self._pushes] = numbers
        self._send_all(self._pushes, numbers)

    def _send_all(self, push: int, numbers: dict[int, int]) -> None:
        """Cuts what is left of a push into envelopes by server."""
        by_server: dict[str, dict[int, int]] = {}
        for shard, number in numbers.items():
            by_server.setdefault(self.home(shard), {})[shard] = number
        for server, parts in by_server.items():
            self._orders += 1
            envelope = Envelope((push, self._orders), parts)
            lane = self.lanes.to(server, self.channel(push))
            lane.unfinished[envelope.order] = envelope
            self.pump(lane)

    def _reroute(self, lane: Lane, envelope: Envelope) -> None:
        """What has moved goes elsewhere, in an envelope of its own."""
        elsewhere = {s: n for s, n in envelope.parts.items() if self.home(s) != lane.server}
        for shard in elsewhere:
            del envelope.parts[shard]
        if not envelope.parts:
            self._finished(lane, envelope)
        if elsewhere:
            self._send_all(envelope.order[0], elsewhere)

    def _finished(self, lane: Lane, envelope: Envelope) -> None:
        lane.unfinished.pop(envelope.order, None)
        if lane.careful is not None and (not lane.unfinished or min(lane.unfinished) > lane.careful):
            lane.careful = None

    def _careful(self, lane: Lane) -> None:
        if lane.unfinished:
            lane.careful = max(lane.unfinished)

    def pump(self, lane: Lane) -> None:
        """Sends what may be sent now."""
        if not lane.unfinished:
            return
        if not lane.attached:
            self.lanes.attach(lane)
            return
        for order in sorted(lane.unfinished):
            envelope = lane.unfinished.get(order)
            if envelope is not None and lane.careful is not None and not lane.is_next(envelope):
                continue
            if envelope is not None and envelope.idle and envelope.later_s <= self.world.now_s:
                self._send(lane, envelope)

    def _send(self, lane: Lane, envelope: Envelope) -> None:
        envelope.idle = False
        envelope.attempt += 1
        attempt = envelope.attempt
        epochs = {bucket: self.epochs[bucket] for bucket in {self.layout.bucket_of_shard[s] for s in envelope.parts}}
        request, body = self._push_request(envelope.parts, epochs)

        def answered(reply: Reply | None) -> None:
            if envelope.idle or envelope.attempt != attempt:
                return
            envelope.idle = True
            if reply is None:
                self.trouble = f"{lane.server} does not answer"
                self._careful(lane)
                if self.world.chance(0.5):
                    self.lanes.drop(lane)
                self.reread()
                self._again(lane, envelope)
            elif isinstance(reply, ServerRefuse):
                self._refused(lane, envelope, reply)
            else:
                assert isinstance(reply, PushReply)
                self._settle(lane, envelope, reply)

        self.lanes.request(lane, request, body, answered)

    def _push_request(self, numbers: dict[int, int], epochs: dict[int, int]) -> tuple[PushRequest, memoryview]:
        sources: list[PushSource] = []
        parts: list[PushPart] = []
        values: list[bytes] = []
        offset = 0
        for shard, number in numbers.items():
            described = self.layout.shards[shard]
            parts.append(PushPart(shard, number, len(sources)))
            rows = described.row_start, described.row_stop
            kind = UpdateKind.GRADIENT if self.ledger.squares else UpdateKind.DELTA
            sources.append(PushSource(kind, described.tensor, *rows, offset))
            delta = self.ledger.delta(self.key, shard, number) or np.nan
            values.append(np.full(described.size, delta, np.float32).tobytes())
            offset += 4 * described.size
        request = PushRequest(self.job, epochs, 1.0, 1, 1, tuple(sources), tuple(parts))
        return request, memoryview(b"".join(values))

    def attach_to(self, server: str) -> None:
        """Makes a connection to a server, whether anything is to be sent there or not."""
        self.lanes.attach(self.lanes.to(server))

    def push_to(self, server: str, shard: int, epoch: int, answered: Callable[..., None]) -> None:
        """Sends the next number of a shard to a server once, whoever its primary is."""
        self.issued[shard] += 1
        self.ledger.issued(self.key, shard, self.issued[shard], 1)
        epochs = {self.layout.bucket_of_shard[shard]: epoch}
        self.lanes.request(self.lanes.to(server), *self._push_request({shard: self.issued[shard]}, epochs), answered)

    def job_failed(self) -> None:
        """A server says that a bucket is gone for good: the run ends here."""
        self.gave_up = True
        self.goes_on = False
        self.lost_for_good()

    def _refused(self, lane: Lane, envelope: Envelope, reply: ServerRefuse) -> None:
        self.trouble = reply.message
        if reply.code == ErrorCode.INTERNAL:
            self.job_failed()
            return
        self._careful(lane)
        if reply.code == ErrorCode.LAYOUT_MISMATCH:
            self.lanes.drop(lane)
        elif reply.code not in REQUEST_LATER:
            raise ViolationError(f"{self.name} is refused by {lane.server}: {reply.code} {reply.message}")
        self.reread()
        self._again(lane, envelope)

    def _again(self, lane: Lane, envelope: Envelope) -> None:
        """Tries again after a pause, longer each time."""
        if not envelope.parts:
            self._finished(lane, envelope)
            self.pump(lane)
            return
        pause_s = min(0.01 * 2 ** min(envelope.attempt, 6), 0.5)
        envelope.later_s = self.world.now_s + pause_s
        self.world.after(pause_s, lambda: self.pump(lane))

    def _settle(self, lane: Lane, envelope: Envelope, reply: PushReply) -> None:
        push = envelope.order[0]
        moved = False
        gap = any(result.code == ErrorCode.SEQUENCE_GAP for result in reply.results)
        envelope.gaps = envelope.gaps + 1 if lane.is_next(envelope) and gap else 0
        if envelope.gaps >= GAPS_MAX:  # nobody older is on the way there: the server has lost what it had acknowledged
            envelope.gaps = 0
            self.lanes.drop(lane)
        for result in reply.results:
            number = envelope.parts.get(result.shard)
            if number is None:
                continue
            if result.code in (ErrorCode.OK, ErrorCode.NOT_FINITE):
                self.ledger.settled(self.key, result.shard, number, result.code)
                del envelope.parts[result.shard]
                self.acknowledged += 1
                self.ledger.acknowledged(self.key, result.shard, number, self.lanes.reply_sent_s)
                self._answered(push, result.shard)
            elif result.code == ErrorCode.CLIENT_EVICTED and self.ledger.bounds is not None:
                self.ledger.bounds.told_evicted(self.key, result.shard)
                self.goes_on = False
                self.world.after(0.0, self.evicted)
                return
            elif result.code in LATER or result.code in MOVED:
                self.trouble = f"shard {result.shard}: {result.message or result.code}"
                self._careful(lane)
                moved = moved or result.code in MOVED
            else:
                what = f"shard {result.shard}, number {number}: {result.code} {result.message}"
                raise ViolationError(f"{self.name} is refused by {lane.server}: {what}")
        if moved or reply.routing:
            self.reread()
        self._again(lane, envelope)

    def _answered(self, push: int, shard: int) -> None:
        left = self.open[push]
        left.discard(shard)
        if not left:
            del self.open[push], self.numbers[push]
            self.settled()

    # --- pulls ------------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Asks one server for some of its shards, once; what comes must be whole, and contain what we know is done."""
        random = self.world.random
        server = random.choice(sorted(set(self.primary.values())))
        lane = self.lanes.to(server)
        mine = [shard for shard in range(len(self.layout.shards)) if self.home(shard) == server]
        if not mine:
            return
        if not lane.attached:
            self.lanes.attach(lane)
            return
        shards = random.sample(mine, random.randint(1, len(mine)))
        epochs = {bucket: self.epochs[bucket] for bucket in {self.layout.bucket_of_shard[s] for s in shards}}
        known, asked_s = {shard: self.ledger.known(self.key, shard) for shard in shards}, self.world.now_s

        def answered(reply: Reply | None, arrays: object = None) -> None:
            if isinstance(reply, PullReply):
                assert isinstance(arrays, list)
                found = iter(arrays)
                for part in reply.parts:
                    if part.code == 0:
                        self.ledger.pulled(self.key, part, next(found), known[part.shard], asked_s)
                        self.pulled += 1
                    elif part.code in MOVED:
                        self.reread()
            elif reply is None or isinstance(reply, ServerRefuse):
                self.reread()
                if isinstance(reply, ServerRefuse) and reply.code == ErrorCode.LAYOUT_MISMATCH:
                    self.lanes.drop(lane)

        self.lanes.request(lane, PullRequest(self.job, epochs, tuple(shards)), memoryview(b""), answered)
