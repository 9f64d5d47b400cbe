"""What a script is written for: an experiment, and how many hosts of what size train it for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """`name` is the experiment's, `experiment` the path as it was given; `time_s` 0 is no limit.

    A run begins with `least` hosts and takes up to `most`; `cores` 0 is all cores of a host. `insecure`: the network
    between hosts is trusted, so the run's token is enough and nothing is encrypted.
    """

    name: str
    experiment: str
    least: int
    most: int
    cores: int = 0
    time_s: float = 0.0
    insecure: bool = False

    @property
    def hosts(self) -> str:
        """As `adamctl train --hosts` takes them."""
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"

    @property
    def flags(self) -> str:
        """Flags of `adamctl train` for all of this but cores and time."""
        return f"--hosts {self.hosts}{' --insecure' if self.insecure else ''}"

    @property
    def time_flag(self) -> str:
        """As `flags`, for the time; "" without a limit."""
        return f" --time {self.time_s:.0f}s" if self.time_s else ""
