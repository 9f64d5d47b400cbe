"""Alignments: which class each frame is of; every line that cannot be is named with its number."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import CLASSES_MAX
from adamctl.roles.data.speech.alignment import Segment, mark, number_classes, read_alignment


def test_segments_are_read_by_recording_in_the_order_of_time() -> None:
    text = "# name start end class\n\na b.wav 20 30.5 ah\nc.wav 0 5 t\na b.wav\t0\t20\tsil\n"
    assert read_alignment(text, "x") == {
        "a b.wav": [Segment(0, 20, "sil", 5), Segment(20, 30.5, "ah", 3)],
        "c.wav": [Segment(0, 5, "t", 4)],
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.wav 0 5", r"line 2: expected NAME START_MS END_MS CLASS, found 'a\.wav 0 5'"),
        ("a.wav zero 5 t", "line 2: expected NAME START_MS"),
        ("a.wav 5 5 t", "line 2: expected 0 <= START_MS < END_MS, found 5 and 5"),
        ("a.wav -1 5 t", "line 2: expected 0 <= START_MS < END_MS, found -1 and 5"),
        ("a.wav nan 5 t", "line 2: expected 0 <= START_MS < END_MS, found nan"),
        ("a.wav 5 inf t", "line 2: expected 0 <= START_MS < END_MS, found 5 and inf"),
        (
            "a.wav 9 12 t",
            r"line 2: expected a segment of a\.wav after that of line 1, which ends at 10 ms, found one from 9",
        ),
    ],
)
def test_a_line_that_cannot_be_is_named(line: str, message: str) -> None:
    with pytest.raises(DamagedDataError, match=rf"^set/words\.txt: {message}"):
        read_alignment(f"a.wav 0 10 t\n{line}\n", "set/words.txt")


def test_a_frame_is_of_the_segment_that_its_middle_lies_in() -> None:
    segments = [Segment(10, 20, "a", 1), Segment(20, 30, "b", 2), Segment(40, 50, "a", 3)]
    middles = np.array([5, 10, 19.9, 20, 29, 30, 39, 45, 50, 60], np.float64)
    found = mark("x.wav", segments, {"a": 4, "b": 2}, middles, 60, "x")
    assert found.frames.tolist() == [1, 2, 3, 4, 7]
    assert found.labels.tolist() == [4, 4, 2, 2, 4]
    assert found.labels.dtype == np.int32


def test_a_segment_beyond_the_recording_is_refused() -> None:
    segments = [Segment(0, 10, "a", 1), Segment(10, 61, "a", 7)]
    with pytest.raises(
        DamagedDataError,
        match=r"line 7: expected a segment of x\.wav that ends by 60\.0 ms, a window after.*found 61 ms",
    ):
        mark("x.wav", segments, {"a": 0}, np.array([5.0]), 60, "x")


def test_classes_that_are_all_numbers_keep_them() -> None:
    assert number_classes(["12", "3", "3"], "x") == (tuple(map(str, range(13))), {"12": 12, "3": 3})
    assert number_classes(["t", "3", "ah"], "x") == (("3", "ah", "t"), {"3": 0, "ah": 1, "t": 2})


def test_too_many_classes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=rf"at most {CLASSES_MAX} classes, from 0, found class {10**12}"):
        number_classes(["0", str(10**12)], "x")
    with pytest.raises(ConfigurationError, match=f"at most {CLASSES_MAX} classes"):
        number_classes([f"w{number}" for number in range(CLASSES_MAX + 1)], "x")
