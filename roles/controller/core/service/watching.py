"""Requests that wait for a key to change. A part of `Requests`; nothing waits on a member that does not lead. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.commands import within_bytes
from adamctl.roles.controller.core.service.events import Watch
from adamctl.roles.controller.core.service.permissions import sees
from adamctl.roles.controller.core.service.shared import Shared
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigWatchReply


@dataclass(frozen=True, slots=True)
class _Watcher:
    request: Watch
    deadline_s: float


class Watching:
    """The watches, by the token of their request."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._watchers: dict[int, _Watcher] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def next_deadline_s(self) -> float:
        return min((watcher.deadline_s for watcher in self._watchers.values()), default=float("inf"))

    def begin(self, event: Watch, now: float) -> None:
        """Answers a watch if something has changed already; else keeps it until something does."""
        shared = self._shared
        answer = self._answer(event)
        if answer is not None:
            shared.put(answer)
        elif len(self._watchers) >= shared.config.watchers_max:
            text = f"{shared.config.watchers_max} requests are watching already, which is the limit; try again"
            shared.put(Refuse(event.token, ErrorCode.NOT_READY, text))
        else:
            wait_s = min(max(event.wait_s, 0.0), shared.config.wait_s_max)
            self._watchers[event.token] = _Watcher(event, now + wait_s)

    def _answer(self, event: Watch) -> Answer | None:
        seen = partial(sees, event.role, event.prefix)
        changes = self._shared.state.changes(event.prefix, event.after_revision, seen)
        if not (changes.reset or changes.entries or changes.deleted):
            return None
        if len(within_bytes(changes.deleted)) < len(changes.deleted):  # too many names for a header: start afresh
            message = ConfigWatchReply(changes.revision, (), True)
            return Answer(event.token, message, self._shared.state.read(event.prefix, seen))
        message = ConfigWatchReply(changes.revision, changes.deleted, changes.reset)
        return Answer(event.token, message, changes.entries)

    def notify(self, keys: Collection[str] | None) -> None:
        """Answers the watches that these changed keys concern; None: all keys may have changed."""
        for token, watcher in list(self._watchers.items()):
            if keys is None or any(key.startswith(watcher.request.prefix) for key in keys):
                answer = self._answer(watcher.request)
                if answer is not None:
                    del self._watchers[token]
                    self._shared.put(answer)

    def time_out(self, now: float) -> None:
        """Ends the watches whose time is up."""
        for token, watcher in list(self._watchers.items()):
            if watcher.deadline_s <= now:
                del self._watchers[token]
                self._shared.put(Answer(token, ConfigWatchReply(self._shared.state.revision), ()))

    def disconnected(self, connection: int) -> None:
        for token, watcher in list(self._watchers.items()):
            if watcher.request.connection == connection:
                del self._watchers[token]
                self._shared.put(Refuse(token, ErrorCode.SHUTTING_DOWN, "the connection was closed"))

    def taken(self) -> list[int]:
        """Forgets all watches, and returns their tokens."""
        tokens = list(self._watchers)
        self._watchers.clear()
        return tokens
