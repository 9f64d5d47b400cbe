"""Hands a large body over piece by piece, while the rest of it is still on its way."""

from __future__ import annotations

import logging
from itertools import pairwise

from adamctl.net.transport import Arrival
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES

ARRIVING_BYTES_MIN = 1 << 20
"""Bodies from here on are large: what is received first has left the cache before the last is there."""

_LOG = logging.getLogger(__name__)


class Pieces:
    """A body that is handed over in pieces; those that are not taken are put where they belong.

    All pieces are received into the same memory, at the end of the body's, so that it stays in cache. No piece that
    comes later reaches to where an earlier one belongs.

    Attributes:
        segments: where to receive the body, one after the other: its pieces, and what is behind the last.
    """

    def __init__(self, arrival: Arrival, body: memoryview, peer_name: str) -> None:
        self._arrival: Arrival | None = arrival
        self._body, self._peer_name = body, peer_name
        self._places = list(pairwise((0, *arrival.stops)))
        self.segments = [*(self._room(start, stop - start) for start, stop in self._places), body[arrival.stops[-1] :]]

    def _room(self, start: int, size: int) -> memoryview:
        """Returns where a piece that belongs at `start` is received, of the same alignment."""
        last = len(self._body) - size
        begin = last - (last - start) % BODY_ALIGNMENT_BYTES
        return self._body[begin : begin + size]

    def filled(self, number: int) -> None:
        """A segment is full."""
        if number >= len(self._places):
            return
        piece = self.segments[number]
        if not self._taken(number, piece):
            start, stop = self._places[number]
            self._body[start:stop] = piece

    def _taken(self, number: int, piece: memoryview) -> bool:
        if self._arrival is None:
            return False
        try:
            return self._arrival.arrived(number, piece)
        except Exception:  # its mistake; the request goes on, and is handled when it is complete
            _LOG.exception("a piece of what %s sends could not be taken", self._peer_name)
            self._arrival = None
            return False
