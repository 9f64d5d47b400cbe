"""Compare-and-set in etcd, applied at most once however often it is sent.

A client has a session: a lease, and a marker key that lives as long as the lease and holds the number of the session's
last change. Every change is one transaction that compares the marker's revision, puts the new number and makes the
change, all or nothing:

- A repeated request whose first attempt was applied fails on the marker, finds its own number there, and is complete.
- An attempt that is still under way after the client has moved on can never be applied: the marker's revision differs.
- The marker can only be written while the lease lives, and exists as long as the lease does; so a session that etcd has
  forgotten refuses everything, and cannot be mistaken for one that has not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.controller.core.service.events import CompareAndSet
from adamctl.roles.controller.core.service.validate import request_problem
from adamctl.roles.controller.etcd.gateway import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    Attempts,
    EtcdError,
    Gateway,
    Json,
    decoded,
    encoded,
    number,
    revision_of,
)
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply

SESSION_S = 600
"""A session without a change for this long is forgotten; far longer than any request takes."""
SESSIONS = "#sessions/"
"""All other keys begin with '/', so a reader of keys never sees a marker."""
_FENCED = "!"


@dataclass
class _Session:
    """`revision`: of the marker, as far as known; `renewed_s`: loop time of the last renewal."""

    lease: str
    marker: str
    revision: int
    renewed_s: float
    sequence: int = 0


class Changer:
    """Carries out the compare-and-sets of one client, one after another."""

    def __init__(self, gateway: Gateway, key: Callable[[str], str]) -> None:
        """`key` returns the name of a key in etcd."""
        self._gateway = gateway
        self._key = key
        self._session: _Session | None = None
        self._changing = asyncio.Lock()

    async def compare_and_set(self, changes: ConfigChanges, deadline_s: float) -> ConfigCompareAndSetReply:
        """See `ConfigurationStore`."""
        problem = request_problem(CompareAndSet(0, "etcd", 1, changes))
        if problem:
            raise RemoteError(ErrorCode.BAD_MESSAGE, problem)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        async with self._changing:
            while True:
                session = await self._begun(until_s - loop.time())
                session.sequence += 1
                attempts = Attempts()
                try:
                    reply = await self._change(session, changes, attempts, until_s)
                except EtcdError as error:
                    if error.status != NOT_FOUND:  # the session's lease
                        raise _explained(error, changes) from error
                    reply = None
                if reply is not None:
                    return reply
                self._session = None
                if attempts.unanswered:
                    raise UnreachableError(
                        f"etcd at {self._gateway.url.text} was unreachable for longer than {SESSION_S} s and has "
                        "forgotten this session: the change may or may not have been made"
                    )

    async def end(self, deadline_s: float) -> None:
        """Removes the session from etcd too, if that can be done in time."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(UnreachableError, RemoteError):  # it ends by itself
                await self._gateway.call("lease/revoke", {"ID": session.lease}, deadline_s)

    async def _begun(self, deadline_s: float) -> _Session:
        """Returns a session that etcd knows, as far as can be told."""
        loop = asyncio.get_running_loop()
        session, now_s = self._session, loop.time()
        if session is not None and now_s - session.renewed_s > SESSION_S / 3:
            reply = await self._gateway.call("lease/keepalive", {"ID": session.lease}, deadline_s, stream=True)
            session.renewed_s = now_s
            if not number(reply, "TTL"):
                session = None
        if session is None:
            reply = await self._gateway.call("lease/grant", {"TTL": SESSION_S}, deadline_s)
            lease = str(reply["ID"])
            marker = encoded(self._key(f"{SESSIONS}{lease}"))
            put = {"key": marker, "value": encoded("0"), "lease": lease}
            # Only if it does not exist: a late attempt must not undo what the session has noted since.
            message = {
                "compare": [compare_revision(marker, 0)],
                "success": [{"request_put": put}],
                "failure": [{"request_range": {"key": marker}}],
            }
            reply = await self._gateway.call("kv/txn", message, deadline_s)
            made = revision_of(reply)
            if not reply.get("succeeded"):  # an earlier attempt has made it
                made = number(reply["responses"][0]["response_range"]["kvs"][0], "mod_revision")
            session = _Session(lease, marker, made, now_s)
        self._session = session
        return session

    async def _change(
        self, session: _Session, changes: ConfigChanges, attempts: Attempts, until_s: float
    ) -> ConfigCompareAndSetReply | None:
        """Returns the answer, or None if etcd has forgotten the session."""
        conditions = [(key, encoded(self._key(key)), revision) for key, revision in sorted(changes.conditions.items())]
        success = self._operations(changes)
        while True:
            reply = await self._transact(
                session,
                str(session.sequence) if success else None,
                [compare_revision(key, revision) for _, key, revision in conditions],
                success,
                [{"request_range": {"key": key, "keys_only": True}} for _, key, _ in conditions],
                attempts,
                until_s,
            )
            revision = revision_of(reply)
            if reply.get("succeeded"):
                session.revision = revision if success else session.revision
                return ConfigCompareAndSetReply(revision, ())
            marker, *found = [response["response_range"].get("kvs", []) for response in reply["responses"]]
            if not marker:
                return None
            value, marked = decoded(marker[0].get("value", "")).decode(), number(marker[0], "mod_revision")
            if value == str(session.sequence):
                session.revision = marked
                return ConfigCompareAndSetReply(marked, ())
            if marked != session.revision:  # by an earlier, abandoned request, which can have no further effect
                session.revision = marked
                continue
            conflicts = [
                name
                for (name, _, wanted), there in zip(conditions, found, strict=True)
                if (number(there[0], "mod_revision") if there else 0) != wanted
            ]
            if conflicts and not attempts.unanswered:
                return ConfigCompareAndSetReply(revision, tuple(conflicts))
            if conflicts and not await self._was_applied(session, until_s):
                return ConfigCompareAndSetReply(revision, tuple(conflicts))

    async def _was_applied(self, session: _Session, until_s: float) -> bool:
        """Makes sure that no earlier attempt still under way makes the change after it was reported as refused.

        Returns whether one has made it in the meantime; then the caller asks again.
        """
        fence = f"{session.sequence}{_FENCED}"
        while True:
            reply = await self._transact(session, fence, [], [], [], Attempts(), until_s)
            if reply.get("succeeded"):
                session.revision = revision_of(reply)
                return False
            marker = reply["responses"][0]["response_range"].get("kvs", [])
            value = decoded(marker[0].get("value", "")).decode() if marker else fence
            if not marker or value == str(session.sequence):
                return bool(marker)
            session.revision = number(marker[0], "mod_revision")
            if value == fence:
                return False

    async def _transact(
        self,
        session: _Session,
        value: str | None,
        compare: list[Json],
        success: list[Json],
        failure: list[Json],
        attempts: Attempts,
        until_s: float,
    ) -> Json:
        """Makes a transaction conditional on the marker's revision; unless `value` is None, it sets the marker."""
        put = {"key": session.marker, "value": encoded(value or ""), "lease": session.lease}
        message = {
            "compare": [compare_revision(session.marker, session.revision), *compare],
            "success": [] if value is None else [{"request_put": put}, *success],
            "failure": [{"request_range": {"key": session.marker}}, *failure],
        }
        remaining_s = until_s - asyncio.get_running_loop().time()
        return await self._gateway.call("kv/txn", message, remaining_s, attempts)

    def _operations(self, changes: ConfigChanges) -> list[Json]:
        puts: list[Json] = [
            {"request_put": {"key": encoded(self._key(key)), "value": encoded(value)}}
            for key, value in changes.puts.items()
        ]
        deletes = dict.fromkeys(changes.deletes)
        return [*puts, *({"request_delete_range": {"key": encoded(self._key(key))}} for key in deletes)]


def compare_revision(key: str, revision: int) -> Json:
    """Returns the condition that an encoded key was last changed at a revision; 0: that it does not exist."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _explained(error: EtcdError, changes: ConfigChanges) -> RemoteError:
    """Returns an error that names the etcd flag whose value was too low, if that was the cause."""
    text = str(error)
    operations = max(len(changes.puts) + len(changes.deletes), len(changes.conditions)) + 1
    size_bytes = sum(len(key) + len(value) + 64 for key, value in changes.puts.items())
    advice = ""
    if error.status == INVALID_ARGUMENT and "too many operations" in text:
        advice = (
            f"this change takes {operations} operations; start every member of etcd with --max-txn-ops="
            f"{_round_up(operations, 1024)} or more (its default is 128)"
        )
    elif "too large" in text or "larger than max" in text:
        advice = (
            f"this change has about {size_bytes} bytes; start every member of etcd with --max-request-bytes="
            f"{_round_up(2 * size_bytes, 1 << 20)} or more (its default is 1.5 MiB)"
        )
    elif error.status == RESOURCE_EXHAUSTED and "space exceeded" in text:
        advice = "raise etcd's --quota-backend-bytes, or compact and defragment it, then disarm its alarm"
    if not advice:
        return error
    return RemoteError(ErrorCode.OVER_QUOTA, f"{text}: {advice}")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
