"""Hands over a large body piece by piece, while the rest is still arriving."""

from __future__ import annotations

import logging
from itertools import pairwise

from adamctl.net.transport import Arrival
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES

ARRIVING_BYTES_MIN = 1 << 20
"""Bodies of at least this size are large: the first part leaves the cache before the last part arrives."""

_LOG = logging.getLogger(__name__)


class Pieces:
    """A body that is handed over in pieces; pieces that are not taken are moved to their place.

    All pieces are received into the same memory, at the end of the body's, so that it stays in cache. No later piece
    overwrites the place of an earlier one.

    Attributes:
        segments: where to receive the body, in order: its pieces, and the rest after the last one.
    """

    def __init__(self, arrival: Arrival, body: memoryview, peer_name: str) -> None:
        self._arrival: Arrival | None = arrival
        self._body, self._peer_name = body, peer_name
        self._places = list(pairwise((0, *arrival.stops)))
        self.segments = [*(self._room(start, stop - start) for start, stop in self._places), body[arrival.stops[-1] :]]

    def _room(self, start: int, size: int) -> memoryview:
        """Returns where to receive the piece that belongs at `start`, with the same alignment."""
        last = len(self._body) - size
        begin = last - (last - start) % BODY_ALIGNMENT_BYTES
        return self._body[begin : begin + size]

    def filled(self, number: int) -> None:
        """Handles a full segment."""
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
        except Exception:  # the handler's fault; the request continues and is handled when complete
            _LOG.exception("a piece of a body from %s could not be taken", self._peer_name)
            self._arrival = None
            return False
