"""How evenly a data set's classes are filled, and what to do about it. Pure: counts in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

UNEVEN_RATIO: Final = 3.0
"""From here on the largest class has so many more examples than the smallest that it is worth a word."""
REPEATS_MANY: Final = 20.0
"""From here on a balanced pass repeats examples of the smallest class so often that they are learnt by heart."""
NAMES_SHOWN_MAX: Final = 10


def balance(train: Mapping[str, int], test: Mapping[str, int]) -> dict[str, Any]:
    """Describes how evenly training examples are spread over classes.

    Args:
        train, test: class -> how many examples it has, of all classes.

    Returns:
        `largest, smallest` (names; of classes that have training examples), `ratio` of their counts, `absent` (names of
        classes without training examples), and `advice`, sentences for the user. The first three are None if there
        are no training examples.
    """
    present = {name: count for name, count in train.items() if count}
    absent = [name for name in train if name not in present]
    largest = max(present, key=lambda name: present[name], default=None)
    smallest = min(present, key=lambda name: present[name], default=None)
    ratio = None if largest is None or smallest is None else present[largest] / present[smallest]
    return {
        "largest": largest,
        "smallest": smallest,
        "ratio": ratio,
        "absent": absent,
        "advice": [*_of_absent(absent, present, test), *_of_uneven(present, largest, smallest, ratio)],
    }


def _of_absent(absent: list[str], present: Mapping[str, int], test: Mapping[str, int]) -> Iterator[str]:
    if not present and absent:
        yield "there are no training examples: nothing can be trained; look whether that is the data you mean"
    elif absent:
        tested = sum(test.get(name, 0) for name in absent)
        lost = f"; the {tested:,} test examples of them cannot be classified" if tested else ""
        yield f"no training examples of {listed(absent)}{lost}: add some, or leave these classes out"
    elif any(test.values()):
        missing = [name for name in present if not test.get(name)]
        if missing:
            yield f"no test examples of {listed(missing)}: nothing is measured for them"


def _of_uneven(
    present: Mapping[str, int], largest: str | None, smallest: str | None, ratio: float | None
) -> Iterator[str]:
    if largest is None or smallest is None or ratio is None or ratio < UNEVEN_RATIO:
        return
    total = sum(present.values())
    yield (
        f"{largest} has {present[largest]:,} training examples, {smallest} {present[smallest]:,}: 1 to {ratio:.3g}. "
        f"Top-1 says little then: who always answers {largest} has {present[largest] / total:.1%}. "
        "Look at balanced accuracy: adamctl eval --confusion"
    )
    repeats = total / len(present) / present[smallest]
    many = "" if repeats < REPEATS_MANY else " (so often that they are learnt by heart: prefer weights, or add some)"
    yield (
        'set train.class_weights = "balanced", or data.sampling = "balanced", with which each example of '
        f"{smallest} comes about {repeats:.3g} times in a pass{many}"
    )
    yield "with data.validation, set data.stratify = true, so that each class has its share there"


def listed(names: list[str]) -> str:
    """Returns names as text, the first ten of many."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more:,} more classes" if more > 0 else shown
