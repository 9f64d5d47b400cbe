"""What a benchmark of bars reports: each part's ratio to a peer or a limit, and whether it meets its bar."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Progress = Callable[[str], None]
Found = Mapping[str, Any]
"""What is known of one bar: `ratio`, or `cannot`, and whatever else is reported beside it."""


@dataclass(frozen=True)
class Bar:
    """What a part is measured against: at most, or at least, `limit`; `what` says of what the ratio is."""

    what: str
    limit: float
    at_least: bool = False

    @property
    def text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"

    def is_met(self, ratio: float) -> bool:
        return bool((operator.ge if self.at_least else operator.le)(ratio, self.limit))


def row_of(name: str, bar: Bar, found: Found, load: float) -> dict[str, Any]:
    """Returns what is reported of a bar.

    Args:
        load: of the machine before it was measured, over a minute.
    """
    ratio = found.get("ratio")
    rest = {key: value for key, value in found.items() if key != "ratio"}
    meets = None if ratio is None else bar.is_met(ratio)
    return {
        "part": name, "what": bar.what, "ratio": ratio, "bar": bar.text, "meets": meets, "load_1_minute": load,
        "details": rest,
    }  # fmt: skip
