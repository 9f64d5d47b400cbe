"""When a push whose parts are all settled is answered: now, when it is durable, or when the loss window holds again.

Two levels (docs/formats/store.md): `applied` answers when the push is in memory, but holds answers back while more is
unsaved than the loss window allows; `durable` answers when every shard's state with the push in it is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adamctl.roles.ps.core_flush import Entry, FlushCore, Waiter
from adamctl.roles.ps.core_instructions import AnswerPush, Free, Instruction, Refuse

WAITING_MAX = 1 << 16


class Acknowledgements:
    """The answers of one server that wait.

    Attributes:
        waiting: pushes that wait to be durable.
        held: pushes that wait for the loss window.
    """

    def __init__(self, flush: FlushCore) -> None:
        self._flush = flush
        self.waiting = 0
        self._held: deque[AnswerPush] = deque()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def crowded(self) -> bool:
        return self.waiting + len(self._held) >= WAITING_MAX

    def take(self, answer: AnswerPush, stored: Iterable[tuple[Entry, int]], now: float) -> list[Instruction]:
        """Returns what to do about a push whose parts are all settled.

        Args:
            stored: entries of the shards that it changed, with the changes that must be durable before it is answered.
        """
        waiter = Waiter(None)
        for entry, changes in stored:
            self._flush.wait(waiter, entry, changes)
        if not waiter.missing and not self._held and not self._flush.pressed(now):
            return [answer]
        later = AnswerPush(answer.token, answer.message, False)
        if waiter.missing:
            waiter.token = later
            self.waiting += 1
        else:
            self._held.append(later)
        return [Free(answer.token)] if answer.queued else []

    def durable(self, waiters: Iterable[Waiter], now: float) -> list[Instruction]:
        """Answers those whose wait is over, and those that were held back if the window holds again."""
        out: list[Instruction] = []
        for waiter in waiters:
            if isinstance(waiter.token, AnswerPush):
                self.waiting -= 1
                out.append(waiter.token)
                waiter.token = None
        if self._held and not self._flush.pressed(now):
            out.extend(self._held)
            self._held.clear()
        return out

    def in_vain(self, waiters: Iterable[Waiter], code: int, message: str) -> list[Instruction]:
        """Refuses those who waited for what is no longer held here: they were applied, but will never be durable."""
        out: list[Instruction] = []
        for waiter in waiters:
            if isinstance(waiter.token, AnswerPush):
                self.waiting -= 1
                out.append(Refuse(waiter.token.token, code, message))
                waiter.token = None
        return out
