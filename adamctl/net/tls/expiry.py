"""When a certificate's end is told, and when connections end that it has vouched for. Pure; clock readings come in."""

from __future__ import annotations

from typing import Final

DAY_S: Final = 86400.0
GRACE_S_MAX: Final = 60.0
GRACE_SHARE: Final = 0.02
"""Connections end within this share of a lifetime after its end, each at a time of its own, at most GRACE_S_MAX."""


class Lifetime:
    """From when to when a certificate is valid, in seconds since 1970."""

    __slots__ = ("not_after_s", "not_before_s")

    def __init__(self, not_before_s: float, not_after_s: float) -> None:
        self.not_before_s, self.not_after_s = not_before_s, not_after_s

    def left_s(self, now_s: float) -> float:
        """Returns the seconds that are left, negative after the end."""
        return self.not_after_s - now_s

    @property
    def stages_s(self) -> tuple[float, ...]:
        """Seconds before the end at which people are told, in order: a third of the lifetime, 7 days, 1 day, the end.

        Of a short lifetime only those that come after its first third.
        """
        third = (self.not_after_s - self.not_before_s) / 3
        return (third, *(stage for stage in (7 * DAY_S, DAY_S) if stage < third), 0.0)

    def stage(self, now_s: float) -> int:
        """Returns how many stages have been reached: 0 as long as there is nothing to tell."""
        return sum(self.left_s(now_s) <= stage for stage in self.stages_s)

    def warning(self, now_s: float) -> str:
        """Returns what to tell about the end; empty as long as there is nothing to tell."""
        if not self.stage(now_s):
            return ""
        left_s = self.left_s(now_s)
        return "has expired" if left_s <= 0 else f"expires in {duration(left_s)}"

    def closing_s(self, share: float) -> float:
        """Returns until when a connection may go on, `share` (0 to 1, by chance) of the grace after the end."""
        grace_s = min(GRACE_S_MAX, GRACE_SHARE * (self.not_after_s - self.not_before_s))
        return self.not_after_s + share * grace_s


def duration(seconds: float) -> str:
    """Returns a time in the largest unit that fits twice."""
    for size, unit in ((DAY_S, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
