"""One range read from several servers, each of which gives what it owns: what is missing, and whom to ask for it.

Pure: who is alive, and what comes, are told to it. A reader does not know the order of a pass or who owns what; it
takes the positions in the answers as they are, and holds every one of the range exactly once in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError

Positions = NDArray[np.int32]


class Ask(NamedTuple):
    """A question to `servers[receiver]`: which of `rows` it owns; None: of the whole range. `number`: its round."""

    number: int
    servers: tuple[str, ...]
    receiver: int
    rows: Positions | None

    @property
    def server(self) -> str:
        return self.servers[self.receiver]


class RangeReading:
    """What of a range is there.

    A round asks every server that is believed alive for what it owns of what is missing. It ends when each has
    answered, failed, or been given up; what is missing then, because a server has died or is slow, the next round asks
    of the others. Answers of servers that were given up count whenever they come.

    Attributes:
        twice: examples that came again after another server had given them; they are dropped.
    """

    def __init__(self, examples: int) -> None:
        self.twice = 0
        self._there = np.zeros(examples, np.bool_)
        self._missing = examples
        self._round = 0
        self._open: dict[str, Ask] = {}  # of the present round
        self._whole = True  # in the present round nobody has failed, and no late answer came
        self._asked: Positions | None = None

    @property
    def complete(self) -> bool:
        return self._missing == 0

    @property
    def round_over(self) -> bool:
        return not self._open

    def begin(self, alive: Iterable[str]) -> list[Ask]:
        """Begins a round, after the one before is over; returns what to ask. `alive` are not none."""
        assert self.round_over and not self.complete
        servers = tuple(sorted(set(alive)))
        self._round += 1
        self._whole = True
        self._asked = None if self._round == 1 else np.flatnonzero(~self._there).astype(np.int32)
        asks = [Ask(self._round, servers, receiver, self._asked) for receiver in range(len(servers))]
        self._open = {ask.server: ask for ask in asks}
        return asks

    def answered(self, ask: Ask, positions: Positions) -> NDArray[np.int64]:
        """Takes an answer; returns which of its examples are new, as indices into it. The others are dropped.

        Raises:
            ProtocolError: the positions are not what can have been asked for, or servers that know of one another gave
                the same one, or none gave one of them: they disagree on who owns what.
        """
        self._check(ask, positions)
        new = ~self._there[positions]
        in_time = self._open.get(ask.server) is ask
        if in_time and self._whole and not new.all():
            raise ProtocolError(
                f"{ask.server}: expected examples that no other server has given, found position "
                f"{int(positions[~new][0])} again: the data servers {', '.join(ask.servers)} disagree on who owns it"
            )
        if not in_time:
            self._whole = False  # the answers of this round may have what this one has
        self._there[positions] = True
        self._missing -= int(new.sum())
        self.twice += int((~new).sum())
        if in_time:
            self._close(ask)
        return np.flatnonzero(new)

    def failed(self, ask: Ask) -> None:
        """A server will not answer, or has been given up: what it owns is asked of others in the next round."""
        if self._open.get(ask.server) is ask:
            self._whole = False
            self._close(ask)

    def waits_for(self, ask: Ask) -> bool:
        """Whether the present round is not over because of this one."""
        return self._open.get(ask.server) is ask

    def _close(self, ask: Ask) -> None:
        del self._open[ask.server]
        if not self._open and self._whole and self._missing:
            missing = int(np.flatnonzero(~self._there)[0])
            raise ProtocolError(
                f"expected each example of a range from one of the data servers {', '.join(ask.servers)}, found "
                f"{self._missing} from none, the first at position {missing}: they disagree on who owns it"
            )

    def _check(self, ask: Ask, positions: Positions) -> None:
        ascending = bool((np.diff(positions) > 0).all())
        inside = not len(positions) or (positions[0] >= 0 and positions[-1] < len(self._there))
        if not (ascending and inside):
            raise ProtocolError(f"{ask.server}: expected ascending positions in a range of {len(self._there)} examples")
        if ask.rows is not None and len(positions) and not np.isin(positions, ask.rows, assume_unique=True).all():
            raise ProtocolError(f"{ask.server}: expected none but the positions asked for, found others")
