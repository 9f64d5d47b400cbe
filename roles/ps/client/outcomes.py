"""A pending push, a push's outcome, and a pull's result."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DeadlineError
from adamctl.roles.ps.client.push_set import Base, Numbers, PushSet


@dataclass(frozen=True)
class RefusedPart:
    """A shard that refused its part, so that nothing was applied. `code` is a member of `ErrorCode`.

    `unsure`: an earlier send had no answer, or one that it was applied where that may not last. With CLIENT_EVICTED,
    that one may have been applied.
    """

    shard: int
    code: int
    message: str
    unsure: bool = False


@dataclass(frozen=True)
class PushOutcome:
    """The outcome of a push.

    Attributes:
        staleness: per applied shard, pushes of other clients between its base and its application (0 if the answer
            was repeated).
        ages: likewise, pushes of all clients, this one included.
        refused: shards to which nothing was applied, and why; their sequence numbers are used up.
        updates: parameter updates applied, as Adam 4.3.2 counts them.
    """

    staleness: tuple[int, ...]
    refused: tuple[RefusedPart, ...]
    updates: int
    ages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pulled:
    """What was pulled, per shard of the layout; zeros for shards that were not asked for.

    Attributes:
        shards: the indices that were asked for.
        epochs, versions: the version (epoch, counter) each shard is at.
        pushes: how many pushes, of all clients, each shard contains.
        sequences: the last of this client's own pushes that each shard contains.
    """

    shards: NDArray[np.int64]
    epochs: Numbers
    versions: Numbers
    pushes: Numbers
    sequences: Numbers

    @property
    def base(self) -> Base:
        """The base to give with gradients computed from these parameters."""
        return Base(self.pushes, self.sequences)


@dataclass
class PendingPush:
    """A push in flight. Await it, or call `wait`; its arrays are borrowed until then.

    Attributes:
        number: counts this client's pushes from 1.
        sequences: per shard of the layout, the number this push has there; 0 for shards it does not touch.
    """

    number: int
    push: PushSet
    sequences: Numbers
    _done: asyncio.Future[PushOutcome] = field(repr=False)

    async def wait(self, deadline_s: float) -> PushOutcome:
        """Raises DeadlineError after `deadline_s` seconds; delivery then goes on in the background."""
        finished, _ = await asyncio.wait([self._done], timeout=deadline_s)
        if not finished:
            raise DeadlineError(f"push {self.number} was not acknowledged within {deadline_s:g} s; sending continues")
        return self._done.result()

    def __await__(self) -> Generator[Any, None, PushOutcome]:
        return asyncio.shield(self._done).__await__()

    @property
    def done(self) -> bool:
        return self._done.done()

    def lacking(self, pulled: Pulled) -> NDArray[np.bool_]:
        """Returns, per shard of the layout, whether the pulled values lack this push."""
        missing: NDArray[np.bool_] = pulled.sequences < self.sequences
        return missing


def mark_retrieved(done: asyncio.Future[PushOutcome]) -> None:
    """Avoids asyncio's message about an unretrieved exception when the caller no longer waits."""
    if not done.cancelled():
        done.exception()
