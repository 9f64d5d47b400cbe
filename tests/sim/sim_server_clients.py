"""What clients ask of a simulated server, and what must hold of each answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_arriving import arrived, begin_arrival
from adamctl.roles.ps.core_copies import HeldShard
from adamctl.roles.ps.core_instructions import AnswerPull, AnswerPush
from adamctl.roles.ps.core_job import Job
from adamctl.roles.ps.core_sequence import ClientKey
from adamctl.wire.messages import AttachRequest, Message, PullRequest, PushRequest, PushResult
from tests.sim.engine import ViolationError

if TYPE_CHECKING:
    from tests.sim.sim_client_lanes import Respond
    from tests.sim.sim_server import SimServer


ON_THE_WAY = 0.3
"""Pushes that are applied while they arrive, as far as they can be."""
CUT_OFF, PIECE_S_MAX = 0.02, 0.002
"""How often the connection ends before a part, and how long one takes at most to follow the one before."""


@dataclass(eq=False)
class ClientRequest:
    """A client's request. `arrays` are copied when they are sent, which is when nobody may have written to them."""

    respond: Respond
    kept: bool = False


class ServerDesk:
    """Where the clients of one process are answered."""

    def __init__(self, server: SimServer, core: Core) -> None:
        self._server, self._core = server, core

    def serve(self, connection: int, client: ClientKey, message: Message, body: memoryview, respond: Respond) -> None:
        core, token, now = self._core, ClientRequest(respond), self._server.clock.now()
        match message:
            case PushRequest():
                if self._server.world.random.random() < ON_THE_WAY and self._arrives(
                    token, connection, client, message, bytes(body)
                ):
                    return
                out = core.push(token, connection, client, message, body, now)
            case PullRequest():
                out = core.pull(token, connection, client, message, now)
            case AttachRequest():
                out = self._attach(token, connection, client, message, body)
            case _:
                raise TypeError(message)
        self._server.do(out)

    def _arrives(
        self, token: ClientRequest, connection: int, client: ClientKey, message: PushRequest, sent: bytes
    ) -> bool:
        """A push that comes part by part, each of which may be applied on the way; the last ones may never come."""
        core, server, random = self._core, self._server, self._server.world.random
        body = memoryview(bytearray(sent))
        push = begin_arrival(core, connection, client, message, body, server.clock.now(), piece_bytes=1)
        if push is None:
            return False

        def come(piece: int) -> None:
            if random.random() < CUT_OFF:
                return
            if piece == len(push.stops):
                server.do(core.push(token, connection, client, message, body, server.clock.now(), push))
                return
            place = slice(push.stops[piece - 1] if piece else 0, push.stops[piece])
            instruction = arrived(core, push, piece, memoryview(sent[place]))
            if instruction is not None:
                server.apply_now(instruction)
            body[place] = b"\xff" * len(sent[place]) if push.taken(piece) else sent[place]  # all ones are NaN
            server.view.after(random.random() * PIECE_S_MAX, lambda: come(piece + 1))

        server.view.after(random.random() * PIECE_S_MAX, lambda: come(0))
        return True

    def _attach(
        self, token: ClientRequest, connection: int, client: ClientKey, message: AttachRequest, body: memoryview
    ) -> list[Any]:
        settled = np.frombuffer(body, "<i8").reshape(-1, 2).tolist()
        server, job = self._server, self._core.jobs.get(message.job)
        before = {index: self._done(job, index, client) for index, _ in settled} if job is not None else {}
        out = self._core.attach(token, connection, client, message, server.clock.now(), [(i, n) for i, n in settled])
        for index, found in before.items():
            after = self._done(job, index, client)
            if after > found:
                server.invariants.ledger.passed_over(server.name, index, client, found + 1, after)
        return out

    def _done(self, job: Job | None, index: int, client: ClientKey) -> int:
        shard = job.shards.get(index) if job is not None else None
        return shard.memory.sequence(client) if shard is not None else 0

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer_push(self, instruction: AnswerPush) -> None:
        done = [result for result in instruction.message.results if not result.code]
        self._answers(result.shard for result in done)
        self._acknowledges(done)
        instruction.token.respond(instruction.message)

    def answer_pull(self, instruction: AnswerPull) -> None:
        """The arrays are read when they are sent, a moment later."""
        self._answers(part.shard for part in instruction.message.parts if not part.code)

        def sent() -> None:
            arrays = [values.array.copy() for values in instruction.values]
            for values in instruction.values:
                values.release()
            instruction.token.respond(instruction.message, arrays)

        self._server.soon(True, sent)

    def _answers(self, shards: Iterable[int]) -> None:
        """Only a primary whose lease holds answers (I1), unless nobody else has a copy; epochs alone are safe, too."""
        server = self._server
        if server.lease.valid():
            return
        layout = server.invariants.layout
        for index in {layout.bucket_of_shard[shard] for shard in shards}:
            if len(server.invariants.records[index].in_sync) > 1:
                raise ViolationError(f"an answer without a lease: {server.name}, bucket {index}")

    def _acknowledges(self, results: Sequence[PushResult]) -> None:
        """What is acknowledged has been prepared by every member of the record that we know (I3)."""
        server, invariants, job = self._server, self._server.invariants, self._server.job
        if invariants.ledger.acks == "applied" or job is None:
            return
        for result in results:
            index = job.layout.bucket_of_shard[result.shard]
            record, bucket = invariants.records[index], job.buckets.get(index)
            if bucket is None or record.primary != server.name or record.epoch != bucket.epoch:
                continue
            for node in record.in_sync:
                member = server.peers[node]
                held = member.owner_of(result.shard) if member is not server else None
                if not isinstance(held, HeldShard) or not member.lived_since(invariants.record_revisions[index]):
                    continue
                if held.version[1] < result.version:
                    found = f"shard {result.shard} at {result.version}, {node} has {held.version}"
                    raise ViolationError(f"acknowledged, and not prepared by a member: {found}")
