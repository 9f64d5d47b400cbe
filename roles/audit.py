"""Who asked for what, and what came of it: one line of JSON for each administrative message that a role gets.

Lines go to the role's log under the logger `adamctl.audit`, whatever its level; controllers also tell the last ones in
their status. A line has only printable ASCII characters. Of one sender's messages those beyond LINES_MAX in WINDOW_S
seconds are counted, and the count is a line of its own.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from adamctl.net.handler import report_failure
from adamctl.net.sources import LineQuota
from adamctl.net.transport import Handler, Request
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigCompareAndSetRequest,
    Message,
)
from adamctl.wire.permissions import AUDITED, AUDITED_OF_OPERATORS, OPERATORS
from adamctl.wire.unreadable import UNREADABLE

LINES_MAX: Final = 100
WINDOW_S: Final = 10.0
RECENT_MAX: Final = 32
"""How many lines a controller's status has at most."""
RECENT_BYTES_MAX: Final = 24 << 10
"""How long they are together at most: a status must fit into a typed header, and one line may have some KB."""
TEXT_CHARACTERS_MAX: Final = 200
KEYS_MAX: Final = 8

_LOG = logging.getLogger("adamctl.audit")
_LOG.setLevel(logging.INFO)  # these lines are written whatever --log-level says
_CHANGES = msgspec.msgpack.Decoder(ConfigChanges)


def is_audited(opcode: Opcode, request: Request) -> bool:
    """Returns whether a request is administrative: some messages are from anybody, some only from operators."""
    return opcode in AUDITED or (opcode in AUDITED_OF_OPERATORS and request.peer.role in OPERATORS)


class Audit:
    """The administrative messages of one role's process.

    Attributes:
        recent: the last lines, oldest first, as plain values: at most RECENT_MAX, and RECENT_BYTES_MAX as JSON.
    """

    def __init__(self, role: str, node: str, now: Callable[[], float] = time.monotonic) -> None:
        self.recent: deque[dict[str, Any]] = deque()
        self._recent_bytes: deque[int] = deque()
        self._to = f"{role}/{node}"
        self._now = now
        self._lines = LineQuota(LINES_MAX, WINDOW_S)

    def watch(self, request: Request, opcode: Opcode, answer: Handler) -> None:
        """Has an administrative request answered, which makes a line."""
        watched = AuditedRequest(request, opcode, self)
        try:
            answer(watched)
        except Exception as error:
            if request.answered:
                raise
            report_failure(watched, error)

    def tell(self, values: Mapping[str, Any]) -> None:
        """Writes a line about a request that was answered, unless its sender has had too many."""
        now = self._now()
        for sender, lines in self._lines.sums(now):
            self._write({"who": sender, "what": f"and {lines} more messages in {WINDOW_S:g} s"})
        if self._lines.take(str(values["who"]), now):
            self._write(values)

    def _write(self, values: Mapping[str, Any]) -> None:
        line = {"unix_s": round(time.time(), 3), **values, "to": self._to}
        text = json.dumps(line)
        self.recent.append(line)
        self._recent_bytes.append(len(text))
        while len(self.recent) > RECENT_MAX or sum(self._recent_bytes) > RECENT_BYTES_MAX:
            self.recent.popleft()
            self._recent_bytes.popleft()
        _LOG.info(text)  # as the text itself: lines that differ only in values are counted as a flood


class AuditedRequest:
    """A request whose answer is told to an `Audit`. Everything else is the request's own."""

    def __init__(self, request: Request, opcode: Opcode, audit: Audit) -> None:
        self._request, self._audit = request, audit
        peer = request.peer
        self._line = {
            "who": f"{peer.role}/{peer.node}",
            "by": request.proof,
            "message": opcode.name,
            "what": _what(request),
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def reply(self, message: Message, body: Sequence[Any] = (), on_sent: Callable[[], None] | None = None) -> None:
        """Answers, and notes that it was done."""
        conflicts = message.conflicts if isinstance(message, ConfigCompareAndSetReply) else ()
        self._audit.tell({**self._line, "result": f"conflict: {_cut(conflicts[0])}" if conflicts else "done"})
        self._request.reply(message, body, on_sent)

    def fail(self, code: int, message: str, details: Mapping[str, object] | None = None) -> None:
        """Answers with an error, and notes it; that another controller leads is no result."""
        if code != ErrorCode.NOT_LEADER:
            self._audit.tell({**self._line, "result": f"{ErrorCode(code).name}: {_cut(message)}"})
        self._request.fail(code, message, details)


def _what(request: Request) -> dict[str, Any]:
    """Returns the fields of a message, or the keys that it changes."""
    message = request.message
    if not isinstance(message, ConfigCompareAndSetRequest):
        fields = msgspec.structs.asdict(message)
        return {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}
    try:
        changes = _CHANGES.decode(request.body)
    except UNREADABLE:
        return {"puts": "not readable"}
    named = {"puts": sorted(changes.puts), "deletes": sorted(changes.deletes)}
    return {what: _few(keys) for what, keys in named.items() if keys}


def _few(keys: Sequence[str]) -> list[str]:
    more = [f"and {len(keys) - KEYS_MAX} more"] if len(keys) > KEYS_MAX else []
    return [*map(_cut, keys[:KEYS_MAX]), *more]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}..."
