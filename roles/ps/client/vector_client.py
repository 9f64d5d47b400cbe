"""How a batch algorithm's coordinator and workers use the vectors on a job's servers (docs/decisions/0032).

The coordinator has commands carried out and learns numbers, one message to each server; it gets no vector. A worker
adds gradients of bundles (`BundlePush`) and pulls the vector that is evaluated (`ParameterClient.pull`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from adamctl.errors import DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.kernels.numeric.exact_sums import combined
from adamctl.model.commands import Command, Parts, Reduce
from adamctl.roles.ps.client.delivery import MOVED, is_for_later
from adamctl.roles.ps.client.session import Session, gather_all
from adamctl.wire.codec import encode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BucketVectors,
    CommitRequest,
    EvaluateRequest,
    Message,
    RoundRequest,
    VectorsReply,
)

AGAIN = MOVED | {ErrorCode.NEWER_EPOCH}
"""A bucket that answers so has done nothing; it is asked again, perhaps elsewhere."""
BUCKETS_MAX = 256
"""Per request: their results must fit into a typed header of 64 KiB. A server of a job as it was cut has about 10."""
DEADLINE_S = 60.0
Make = Callable[[str, dict[int, int]], Message]
"""Returns the request for a job's buckets with these epochs."""


@dataclass
class VectorAnswer:
    """What all servers have said.

    Attributes:
        results: bucket -> what became of the request there, and what it has.
        parts: for each reduction of a round, what each server has found on buckets without error.
    """

    results: dict[int, BucketVectors] = field(default_factory=dict)
    parts: list[list[Parts]] = field(default_factory=list)

    @property
    def refused(self) -> dict[int, BucketVectors]:
        """The buckets that did not do it; what they say tells what they lack."""
        return {bucket: result for bucket, result in self.results.items() if result.code}


class VectorClient:
    """The commands of a job's coordinator."""

    def __init__(self, session: Session) -> None:
        """`session`: attached."""
        self._session = session

    async def evaluate(
        self, evaluation: int, at: str, fraction_bits: int, bundles: int, *, last_round: int = -1,
        buckets: Collection[int] | None = None, deadline_s: float = DEADLINE_S,
    ) -> VectorAnswer:  # fmt: skip
        """Opens an evaluation on all buckets, or on some. The arguments are those of `EvaluateRequest`.

        Raises:
            DeadlineError: not all servers have answered.
            RemoteError: a server refuses the request as a whole, and trying again does not help.
        """
        rest = evaluation, at, fraction_bits, bundles, last_round
        return await self._everywhere(
            lambda job, epochs: EvaluateRequest(job, epochs, *rest), None, buckets, deadline_s
        )

    async def round(
        self, number: int, commands: Sequence[Command], *, evaluation: int = 0, after: int = -1,
        buckets: Collection[int] | None = None, deadline_s: float = DEADLINE_S,
    ) -> VectorAnswer:  # fmt: skip
        """Has commands carried out that write scratch; see `RoundRequest`. Raises as `evaluate`."""
        rest = number, evaluation, after
        return await self._everywhere(
            lambda job, epochs: RoundRequest(job, epochs, *rest), commands, buckets, deadline_s
        )

    async def commit(
        self, number: int, commands: Sequence[Command], *, evaluation: int = 0, anew: bool = False,
        last_round: int = -1, buckets: Collection[int] | None = None, deadline_s: float = DEADLINE_S,
    ) -> VectorAnswer:  # fmt: skip
        """Has commands carried out that write what is kept; see `CommitRequest`. Raises as `evaluate`."""
        rest = number, evaluation, anew, last_round
        return await self._everywhere(
            lambda job, epochs: CommitRequest(job, epochs, *rest), commands, buckets, deadline_s
        )

    async def _everywhere(
        self, make: Make, commands: Sequence[Command] | None, buckets: Collection[int] | None, deadline_s: float
    ) -> VectorAnswer:
        """Asks the server of each bucket, again where one has moved or is silent: all may be repeated."""
        answer = VectorAnswer(parts=[[] for command in commands or () if isinstance(command, Reduce)])
        body = b"" if commands is None else encode_commands(commands)
        session, attempt = self._session, 0
        left = set(range(len(session.layout.buckets)) if buckets is None else buckets)
        try:
            async with asyncio.timeout(deadline_s):
                while left:
                    by_server: dict[str, list[int]] = {}
                    for bucket in sorted(left):
                        by_server.setdefault(session.routing.primary[bucket], []).append(bucket)
                    asked = [
                        (node, mine[start : start + BUCKETS_MAX])
                        for node, mine in by_server.items()
                        for start in range(0, len(mine), BUCKETS_MAX)
                    ]
                    await gather_all(self._ask(node, make, body, mine, answer) for node, mine in asked)
                    left -= answer.results.keys()
                    if left:
                        await session.pause(attempt)
                        attempt += 1
        except TimeoutError as error:
            what = f"job {session.job!r}: {len(left)} buckets have not answered within {deadline_s:g} s"
            raise DeadlineError(f"{what}: {session.troubles()}") from error
        return answer

    async def _ask(self, node: str, make: Make, body: bytes, buckets: list[int], answer: VectorAnswer) -> None:
        """Asks one server; adds what it says to `answer`, of buckets that it serves."""
        session = self._session
        channel = session.channel(node)
        epochs = {bucket: session.routing.epochs[bucket] for bucket in buckets}
        shards = [session.layout.buckets[bucket].shard_start for bucket in buckets]
        try:
            request = channel.request(make(session.job, epochs), [body] if body else (), deadline_s=session.attempt_s)
            reply = await session.answer(channel, request, shards)
        except UnreachableError:
            await session.look()
            return
        except RemoteError as error:
            await is_for_later(channel, error)
            await session.look()
            return
        try:
            found = _parts_in(node, reply.message, reply.body, len(answer.parts))
        finally:
            if len(reply.body):
                reply.release()
        assert isinstance(reply.message, VectorsReply)
        for known, part in zip(answer.parts, found, strict=True):
            known.append(part)
        answer.results |= {result.bucket: result for result in reply.message.results if result.code not in AGAIN}
        if any(result.code in AGAIN for result in reply.message.results):
            with suppress(UnreachableError):  # where nobody can be asked just now, it is asked again as before
                await session.reread()


def numbers_of(commands: Iterable[Command], answer: VectorAnswer) -> list[float]:
    """Returns the number of each reduction of a round that all buckets have carried out."""
    operations = [command.operation for command in commands if isinstance(command, Reduce)]
    return [combined(operation, parts) for operation, parts in zip(operations, answer.parts, strict=True)]


def _parts_in(node: str, reply: Message, body: memoryview, reductions: int) -> list[Parts]:
    """Returns what a server has found for each reduction. Raises ProtocolError if the answer does not fit the round."""
    if not isinstance(reply, VectorsReply):
        raise ProtocolError(f"parameter server {node}: expected an answer about vectors; found {type(reply).__name__}")
    if len(reply.lengths) != reductions or min(reply.lengths, default=0) < 0 or 8 * sum(reply.lengths) != len(body):
        what = f"expected numbers for {reductions} reductions; found {len(reply.lengths)} in {len(body)} bytes"
        raise ProtocolError(f"parameter server {node}: {what}")
    numbers = iter(np.frombuffer(body, "<f8").tolist())
    return [Parts(tuple(next(numbers) for _ in range(length))) for length in reply.lengths]
