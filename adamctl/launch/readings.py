"""Processor time and memory of the roles that run on this machine, for the live display."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from adamctl.live.reading import ProcessReading


class Readings:
    """Reads at most once per interval; the processor share is the mean since the last reading."""

    def __init__(self, roles: Mapping[str, str], interval_s: float = 1.0) -> None:
        """`roles` maps node -> role."""
        self._roles = dict(roles)
        self._interval_s = interval_s
        self._taken_s = 0.0
        self._processes: dict[int, psutil.Process] = {}
        self._latest: dict[str, ProcessReading] = {}

    def read(self, pids: Mapping[str, int], now_s: float) -> Mapping[str, ProcessReading]:
        """Returns node -> reading of the live processes."""
        if self._latest and now_s - self._taken_s < self._interval_s:
            return self._latest
        self._taken_s = now_s
        latest: dict[str, ProcessReading] = {}
        for node, pid in pids.items():
            try:
                process = self._processes.setdefault(pid, psutil.Process(pid))
                latest[node] = ProcessReading(
                    process.cpu_percent(None) / 100, process.memory_info().rss, self._roles.get(node, "")
                )
            except psutil.Error:
                self._processes.pop(pid, None)
        self._latest = latest
        return latest
