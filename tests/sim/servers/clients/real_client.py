"""What one session of a process does with the real `ParameterClient`: pushes and pulls, and a look at what it is told.

What was answered is seen where answers come in: the client may take a push for done when, and as, each of its parts was
answered, sends nothing again that was, and says of nothing that it is settled before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from adamctl.errors import BackpressureError, DeadlineError, RemoteError, UnreachableError
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.client.parameter_client import ParameterClient, PendingPush, PushOutcome, PushSet
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachRequest, Message, PulledPart, PushReply, PushRequest
from tests.sim.engine import ViolationError
from tests.sim.servers.clients.push_client import DELTA_MAX, NOT_FINITE
from tests.sim.servers.clients.transport import ClientConfiguration, ClientTransport

if TYPE_CHECKING:
    from tests.sim.servers.clients.real_worker import RealWorker

ATTACH_S, PULL_S = 20.0, 20.0
ATTEMPTS_S = (0.3, 0.6, 1.2)
SIBLING = 0.3
"""How often a session has two clients, as a worker has whose parts of a step wait for each other."""
SOME_SHARDS = 0.2
"""How often a push is of some shards of what it holds."""
FINAL = (ErrorCode.OK, ErrorCode.NOT_FINITE)


class RealClient:
    """One session.

    Attributes:
        keys: whom the servers take its clients for.
        open: pushes and pulls that are not done -> their shards.
        acknowledged, pulled: what has been answered so far.
        goes_on: whether it begins new ones.
        gave_up: a server has said that the job has failed; `lost_for_good` is called then.
    """

    def __init__(self, process: RealWorker, session: int) -> None:
        self._process, self._world, self._ledger = process, process.world, process.ledger
        self.name, self.layout = process.name, process.layout
        self.transport = ClientTransport(process, self, process.connection_numbers)
        random = self._world.random
        context = RoleContext(
            role="worker", node=process.name, options={}, transport=cast(Any, self.transport),
            controller=cast(Any, ClientConfiguration(process.loop, process.member)), stopping=asyncio.Event(),
            log=logging.getLogger(__name__), incarnation=process.incarnation,
        )  # fmt: skip
        first = ParameterClient.from_context(
            context, process.job, session=session, notice=self._say, attempt_s=random.choice(ATTEMPTS_S),
            pushes_max=process.window - 1, connections=random.choice((1, 1, 2)),
        )  # fmt: skip
        self._clients = [first, first.sibling(1)] if random.random() < SIBLING else [first]
        self.keys: list[ClientKey] = [self._key(client) for client in self._clients]
        self.open: dict[int, set[int]] = {}
        self.acknowledged = self.pulled = 0
        self.goes_on, self.gave_up = process.goes_on, False
        self.pause_s_max = process.pause_s_max
        self.lost_for_good: Callable[[], None] = process.lost_for_good
        self._number = 0
        self._closing = False
        self._told: dict[tuple[ClientKey, int, int], int] = {}
        self._unanswered: dict[tuple[ClientKey, int], dict[int, PendingPush]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def trouble(self) -> str:
        return "; ".join(client._session.troubles() for client in self._clients)

    def _key(self, client: ParameterClient) -> ClientKey:
        hello = client._session.hello()
        return hello.node, hello.incarnation

    def _say(self, text: str, *details: object) -> None:
        self._world.note(self.name, "says", text)

    # --- life -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for client in self._clients:
            self._spawn(self._work(client))

    async def close(self) -> None:
        """Gives up what is under way."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in reversed(self._clients):
            await client.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._watched(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """What must not be is told to the process."""
        try:
            await work
        except RemoteError as error:
            if error.code != ErrorCode.INTERNAL:
                self._process.failed(error, "it is refused")
            elif not self.gave_up:
                self.gave_up, self.goes_on = True, False
                self._process.holds_good(self.lost_for_good)
        except Exception as error:
            self._process.failed(error, "a call ends")

    async def _work(self, client: ParameterClient) -> None:
        await self._attach(client)
        random = self._world.random
        while True:
            if self.goes_on and len(self.open) < self._process.window * len(self._clients):
                if random.random() < 0.12:
                    self._spawn(self._pull(client))
                else:
                    self._push(client)
            await asyncio.sleep(random.random() * self.pause_s_max * len(self._clients))

    async def _attach(self, client: ParameterClient) -> None:
        while True:
            try:
                await client.attach(deadline_s=ATTACH_S)
                return
            except DeadlineError as error:
                self._say(str(error))
            except RemoteError as error:
                if error.code != ErrorCode.UNKNOWN_JOB:
                    raise
                self._say(str(error))

    # --- pushes -----------------------------------------------------------------------------------------------------

    def _push(self, client: ParameterClient) -> None:
        random, layout, key = self._world.random, self.layout, self._key(client)
        count = len(layout.tensors)
        push = PushSet(layout, 1.0, 1, 1)
        deltas: dict[int, int] = {}
        for tensor in sorted(random.sample(range(count), random.choice((1, 2, 2, 4, count)))):
            delta = deltas[tensor] = 0 if random.random() < NOT_FINITE else random.randint(1, DELTA_MAX)
            values = np.full(layout.tensors[tensor].size, delta or np.nan, np.float32)
            (push.gradient if self._ledger.squares else push.delta)(tensor, values)
        try:
            pending = client.start_push(push, only=self._only(deltas))
        except BackpressureError:
            return
        numbers = {int(shard): int(pending.sequences[shard]) for shard in np.flatnonzero(pending.sequences)}
        for shard, number in numbers.items():
            self._ledger.issued(key, shard, number, deltas[layout.shards[shard].tensor])
            self._unanswered.setdefault((key, shard), {})[number] = pending
        self._number += 1
        self.open[self._number] = set(numbers)
        self._spawn(self._see(pending, key, numbers, self._number))

    def _only(self, tensors: dict[int, int]) -> Sequence[int] | None:
        random = self._world.random
        if random.random() >= SOME_SHARDS:
            return None
        shards = [shard.index for shard in self.layout.shards if shard.tensor in tensors]
        return random.sample(shards, random.randint(1, len(shards)))

    async def _see(self, pending: PendingPush, key: ClientKey, numbers: dict[int, int], opened: int) -> None:
        """Waits for a push; then its arrays are used for something else."""
        try:
            outcome = await pending
        except UnreachableError:
            if not self._closing:
                raise
            return
        finally:
            if pending.done:
                for array in pending.push.arrays():
                    array[...] = np.nan
        self._check(outcome, key, numbers)
        del self.open[opened]

    def _check(self, outcome: PushOutcome, key: ClientKey, numbers: dict[int, int]) -> None:
        """It is told of each part what was answered."""
        refused = {part.shard: part.code for part in outcome.refused}
        for shard, number in numbers.items():
            told = self._told.get((key, shard, number))
            what = f"number {number} of {key[0]} on shard {shard}"
            if told is None:
                raise ViolationError(f"taken for done, and not answered: {what}")
            if refused.get(shard, 0) != told:
                raise ViolationError(f"not what was answered: {what}: {told}, and it is told {refused.get(shard, 0)}")
        if len(outcome.staleness) != len(numbers) - len(refused):
            raise ViolationError(f"a push of {len(numbers)} parts has an outcome of {len(outcome.staleness)}")

    # --- what it asks, and what comes back --------------------------------------------------------------------------

    def asks(self, client: ClientKey, message: Message, body: bytes) -> None:
        """See `Watch`."""
        if isinstance(message, AttachRequest):
            for shard, number in np.frombuffer(body, "<i8").reshape(-1, 2).tolist():
                pushes = self._unanswered.get((client, shard), {})
                left = [number for number, pending in pushes.items() if not pending.done]  # it has failed otherwise
                if left and min(left) <= number:
                    told = f"number {min(left)} of {client[0]} on shard {shard}"
                    self._process.violated(f"said to be settled, and not answered: {told}")
        elif isinstance(message, PushRequest):
            for part in message.parts:
                if (client, part.shard, part.sequence) in self._told:
                    told = f"number {part.sequence} of {client[0]} on shard {part.shard}"
                    self._process.violated(f"sent again, and it was answered: {told}")

    def answered(self, client: ClientKey, asked: Message, answer: Message, sent_s: float) -> None:
        """See `Watch`."""
        if not isinstance(asked, PushRequest) or not isinstance(answer, PushReply):
            return
        numbers = {part.shard: part.sequence for part in asked.parts}
        for result in answer.results:
            number = numbers[result.shard]
            if result.code in FINAL and (client, result.shard, number) not in self._told:
                self._told[client, result.shard, number] = result.code
                self._unanswered[client, result.shard].pop(number, None)
                self._ledger.settled(client, result.shard, number, result.code)
                self._ledger.acknowledged(client, result.shard, number, sent_s)
                self.acknowledged += 1

    # --- pulls ------------------------------------------------------------------------------------------------------

    async def _pull(self, client: ParameterClient) -> None:
        """What comes must be whole, and contain what we know is done."""
        random, key, count = self._world.random, self._key(client), len(self.layout.shards)
        shards = sorted(random.sample(range(count), random.randint(1, count)))
        known, asked_s = {shard: self._ledger.known(key, shard) for shard in shards}, self._world.now_s
        into = np.full(self.layout.flat_size, np.nan, np.float32)
        self._number += 1
        opened = self._number
        self.open[opened] = set(shards)
        try:
            pulled = await client.pull(into, shards=shards, deadline_s=PULL_S)
        except DeadlineError as error:
            self._say(str(error))
        else:
            for shard in shards:
                described = self.layout.shards[shard]
                version = int(pulled.epochs[shard]), int(pulled.versions[shard])
                part = PulledPart(shard, 0, *version, int(pulled.pushes[shard]), int(pulled.sequences[shard]), 0, 0)
                values = into[described.offset : described.offset + described.size]
                self._ledger.pulled(key, part, values, known[shard], asked_s)
                self.pulled += 1
        del self.open[opened]
