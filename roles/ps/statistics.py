"""Rates over the last few seconds, from counters that only grow."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0
SAMPLE_EVERY_S = 0.5


class Rates:
    """Remembers samples of counters over the last WINDOW_S seconds."""

    def __init__(self, now: float) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque([(now, {})])

    def sample(self, now: float, counters: dict[str, float]) -> dict[str, float]:
        """Returns each counter's growth per second; a counter not seen before grew from 0."""
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        if now - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples.append((now, dict(counters)))
        elapsed_s = max(now - then, 1e-3)
        return {name: max(count - before.get(name, 0.0), 0.0) / elapsed_s for name, count in counters.items()}
