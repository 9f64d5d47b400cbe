"""Clients that have to know something before their first push: what servers remember of them, or that values are there.

They do what `roles/ps/client/parameter_client.py` and `api/parameter_client_values.py` do, without an event loop.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PullReply, PullRequest, PushRequest
from tests.sim.servers.clients.lanes import Reply
from tests.sim.servers.clients.push_client import SimPushClient

LOOK_EVERY_S = 0.05
GIFT_MAX = 1000
RETRY_S = 0.5


class KnowingClient(SimPushClient):
    """Reads all shards before it pushes, and goes on after the numbers that are remembered of it.

    Attributes:
        lacking: shards that it knows nothing of; None: it has not begun.
    """

    lacking: set[int] | None = None

    def begin(self) -> None:
        if self.primary and self.lacking is None:
            self.lacking = set(range(len(self.layout.shards)))
        if not self.primary or self.lacking:
            if self.primary:
                self._look()
            else:
                self.reread()
            self.world.after(LOOK_EVERY_S + 0.05 * self.world.random.random(), self.begin)
            return
        super().begin()

    def learns(self, part: Any) -> bool:
        """Says whether enough is known of a shard."""
        self.issued[part.shard] = max(self.issued[part.shard], part.sequence)
        return True

    def _look(self) -> None:
        """Asks each server for what is lacking."""
        assert self.lacking is not None
        for server in sorted({self.home(shard) for shard in self.lacking}):
            lane = self.lanes.to(server)
            shards = tuple(shard for shard in sorted(self.lacking) if self.home(shard) == server)
            if not lane.attached:
                self.lanes.attach(lane)
                continue
            epochs = {self.layout.bucket_of_shard[s]: self.epochs[self.layout.bucket_of_shard[s]] for s in shards}
            self.lanes.request(lane, PullRequest(self.job, epochs, shards), memoryview(b""), self._looked(server))

    def _looked(self, server: str) -> Any:
        def answered(reply: Reply | None, arrays: object = None) -> None:
            if not isinstance(reply, PullReply) or not self.lacking:
                self.reread()
                if not isinstance(reply, PullReply):
                    self.lanes.drop(self.lanes.to(server))
                return
            assert isinstance(arrays, list)
            found = iter(arrays)
            for part in reply.parts:
                if part.code:
                    self.reread()
                    continue
                self.ledger.pulled(self.key, part, next(found), 0, self.world.now_s)
                if part.shard in self.lacking and self.learns(part):
                    self.lacking.discard(part.shard)

        return answered


class TakingClient(KnowingClient):
    """The first one of all gives initial values, with its first push; others wait until all are there.

    Should who gives them be gone before, the job has come to nothing, and they give up.
    """

    def begin(self) -> None:
        ledger = self.ledger
        if not ledger.begun.gifts and self.primary and self.name == "w1":
            self._give()
        if self._gives:
            if self.open:
                self.world.after(LOOK_EVERY_S, self.begin)
                return
            self.lacking = set()
        elif self.lacking and ledger.begun.gifts and self._maker in ledger.dead and not ledger.begun.all_told:
            self._count_down()
            if self.gave_up:
                return
        super().begin()

    _looks_left = 5

    @property
    def _maker(self) -> Any:
        return next(iter(self.ledger.begun.gifts.values()))[0]

    @property
    def _gives(self) -> bool:
        return bool(self.ledger.begun.gifts) and self._maker == self.key

    def _count_down(self) -> None:
        """What the maker has sent may still come; a little later it is looked at for the last time."""
        self._looks_left -= 1
        if self._looks_left <= 0:
            self.gave_up, self.goes_on = True, False

    def learns(self, part: Any) -> bool:
        return bool(part.pushes)

    def _give(self) -> None:
        """Everything at once."""
        self._pushes += 1
        numbers = dict.fromkeys(range(len(self.layout.shards)), 1)
        for shard in numbers:
            self.issued[shard] = 1
            self.ledger.begun.gives(self.key, shard, self.world.random.randint(1, GIFT_MAX))
        self.open[self._pushes] = set(numbers)
        self.numbers[self._pushes] = numbers
        self._send_all(self._pushes, numbers)

    def _push_request(self, numbers: dict[int, int], epochs: dict[int, int]) -> tuple[PushRequest, memoryview]:
        """Initial values are added as they are, whatever the rule."""
        request, body = super()._push_request(numbers, epochs)
        if self._gives:
            sources = [
                msgspec.structs.replace(source, kind=UpdateKind.DELTA) if part.sequence == 1 else source
                for part, source in zip(request.parts, request.sources, strict=True)
            ]
            request = msgspec.structs.replace(request, sources=tuple(sources))
        return request, body
