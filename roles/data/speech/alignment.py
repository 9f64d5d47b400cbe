"""Alignments: which class each frame of a recording is of, as a recogniser or a person has marked it.

A text file in UTF-8 with a line for each segment, `NAME START_MS END_MS CLASS`: the recording's name below the source,
milliseconds from its start, and the class, a word. Empty lines and lines that begin with `#` are passed over. A frame
is of the class of the segment that its middle lies in; one whose middle lies in none is no example, but its neighbours
have it in their contexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import CLASSES_MAX

_FIELDS: Final = 4


class Segment(NamedTuple):
    """Part of a recording, from `start_ms` to before `end_ms`; `line` is where the file says so, from 1."""

    start_ms: float
    end_ms: float
    class_name: str
    line: int


class Marked(NamedTuple):
    """The examples of a recording: frames, ascending, and a label for each, both [n]."""

    frames: NDArray[np.int64]
    labels: NDArray[np.int32]


def read_alignment(text: str, origin: str) -> dict[str, list[Segment]]:
    """Returns the segments of each recording, in the order of their starts.

    Raises:
        DamagedDataError: a line is not as described above, or segments of a recording overlap; with the line's number.
    """
    found: dict[str, list[Segment]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.rsplit(maxsplit=_FIELDS - 1)
        try:
            name, start_ms, end_ms, class_name = fields[0], float(fields[1]), float(fields[2]), fields[3]
        except (ValueError, IndexError) as error:
            raise DamagedDataError(
                f"{origin}: line {number}: expected NAME START_MS END_MS CLASS, found {line[:80]!r}"
            ) from error
        if not 0 <= start_ms < end_ms < math.inf:
            raise DamagedDataError(
                f"{origin}: line {number}: expected 0 <= START_MS < END_MS, found {start_ms:g} and {end_ms:g}"
            )
        found.setdefault(name.strip(), []).append(Segment(start_ms, end_ms, class_name, number))
    for name, segments in found.items():
        segments.sort()
        for before, after in pairwise(segments):
            if after.start_ms < before.end_ms:
                raise DamagedDataError(
                    f"{origin}: line {after.line}: expected a segment of {name} after that of line {before.line}, "
                    f"which ends at {before.end_ms:g} ms, found one from {after.start_ms:g} ms"
                )
    return found


def number_classes(names: Iterable[str], origin: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """Returns the classes, and the label of each name: the number itself where all names are whole numbers from 0.

    So states of a model keep their numbers though some never occur.

    Raises:
        ConfigurationError: there would be more than CLASSES_MAX.
    """
    distinct = sorted(set(names))
    numbers = {name: int(name) for name in distinct if name.isdecimal()}
    if len(numbers) < len(distinct):
        numbers = {name: number for number, name in enumerate(distinct)}
        classes = tuple(distinct)
    else:
        classes = tuple(map(str, range(min(max(numbers.values(), default=-1), CLASSES_MAX) + 1)))
    if len(classes) > CLASSES_MAX:
        named = max(numbers, key=lambda name: numbers[name])
        raise ConfigurationError(f"{origin}: expected at most {CLASSES_MAX} classes, from 0, found class {named}")
    return classes, numbers


def mark(
    name: str, segments: Sequence[Segment], labels: dict[str, int], middles_ms: NDArray[np.float64], most_ms: float,
    origin: str,
) -> Marked:  # fmt: skip
    """Returns the examples of a recording.

    Args:
        middles_ms: [frames], where the middle of each frame is.
        most_ms: where the last segment may end at most.

    Raises:
        DamagedDataError: a segment ends after that; with the line's number.
    """
    last = segments[-1]
    if last.end_ms > most_ms:
        raise DamagedDataError(
            f"{origin}: line {last.line}: expected a segment of {name} that ends by {most_ms:.1f} ms, a window after "
            f"the recording's end, found {last.end_ms:g} ms"
        )
    starts = np.array([segment.start_ms for segment in segments])
    ends = np.array([segment.end_ms for segment in segments])
    of_class = np.array([labels[segment.class_name] for segment in segments], np.int32)
    segment_of = np.searchsorted(starts, middles_ms, side="right") - 1
    inside = (segment_of >= 0) & (middles_ms < ends[segment_of])
    frames = np.flatnonzero(inside).astype(np.int64)
    return Marked(frames, of_class[segment_of[frames]])
