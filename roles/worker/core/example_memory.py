"""Which examples a worker of a batch algorithm keeps, reads and drops (pure).

Evaluation after evaluation it does about the same bundles in the same order (DistBelief 4.2, Sandblaster). If that is
more than fits, dropping what was unused for longest would drop everything just before it is needed. So what is there
stays, and what finds no room is dropped as soon as it is used; only ranges that an evaluation has not used make way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """Examples [start, stop) of the batch."""

    start: int
    stop: int

    @property
    def examples(self) -> int:
        return self.stop - self.start


@dataclass
class _Kept:
    """One range. `users`: bundles that need it now; `used`: the last evaluation of which one did."""

    is_there: bool = False
    users: int = 0
    used: int = 0


@dataclass
class ExampleMemory:
    """Ranges of examples, decoded: what bundles need now, and beyond that no more than `bytes_max`.

    Attributes:
        example_bytes: of one example.
        bytes_max: of all ranges, those that are being read included.
        used_bytes: the same, now.
    """

    example_bytes: int
    bytes_max: int
    used_bytes: int = 0
    _kept: dict[Span, _Kept] = field(default_factory=dict)
    _dropped: list[Span] = field(default_factory=list)

    def need(self, span: Span, evaluation: int) -> bool:
        """A bundle needs a range; says whether it is to be read."""
        kept = self._kept.get(span)
        is_new = kept is None
        if kept is None:
            self._make_room(span, evaluation)
            kept = self._add(span)
        kept.users += 1
        kept.used = max(kept.used, evaluation)
        return is_new

    def has(self, span: Span) -> bool:
        kept = self._kept.get(span)
        return kept is not None and kept.is_there

    def arrived(self, span: Span) -> None:
        """A range that was to be read is there."""
        kept = self._kept[span]
        kept.is_there = True
        self._settle(span, kept)

    def release(self, span: Span) -> None:
        """A bundle needs a range no more. It stays if there is room."""
        kept = self._kept[span]
        kept.users -= 1
        self._settle(span, kept)

    def expect(self, spans: Iterable[Span], evaluation: int) -> list[Span]:
        """Returns which of the ranges that the next evaluation will need are to be read now: those that find room.

        Args:
            evaluation: the last one that is known.
        """
        to_read: list[Span] = []
        for span in spans:
            kept = self._kept.get(span)
            if kept is not None:
                kept.used = max(kept.used, evaluation)
            elif self._make_room(span, evaluation):
                self._add(span).used = evaluation
                to_read.append(span)
        return to_read

    def take_dropped(self) -> list[Span]:
        """Returns the ranges whose examples can be forgotten, each once."""
        taken, self._dropped = self._dropped, []
        return taken

    def _add(self, span: Span) -> _Kept:
        self._kept[span] = kept = _Kept()
        self.used_bytes += self.example_bytes * span.examples
        return kept

    def _settle(self, span: Span, kept: _Kept) -> None:
        if kept.is_there and not kept.users and self.used_bytes > self.bytes_max:
            self._drop(span)

    def _make_room(self, span: Span, evaluation: int) -> bool:
        """Drops what the evaluation before has not used, as far as needed; says whether the range fits then."""
        limit = self.bytes_max - self.example_bytes * span.examples
        for old in [old for old, kept in self._kept.items() if kept.is_there and not kept.users]:
            if self.used_bytes <= limit:
                break
            if self._kept[old].used < evaluation - 1:
                self._drop(old)
        return self.used_bytes <= limit

    def _drop(self, span: Span) -> None:
        del self._kept[span]
        self.used_bytes -= self.example_bytes * span.examples
        self._dropped.append(span)
