"""What a run on many machines is asked to have: how many hosts, of which kind, from which engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adamctl.errors import ConfigurationError
from adamctl.launch.places.engines import BY_HAND, check_flags
from adamctl.launch.places.places import HostNeeds

SPARES_MAX = 64


@dataclass(frozen=True)
class HostsAsked:
    """Which hosts a run wants.

    Attributes:
        least: with so many hosts training begins.
        most: so many are used at most, besides spares.
        engine: who places the agents, a name of `adamctl.launch.places.engines.ENGINES`.
        cores: of each host that may be used; 0: all of them.
        time_s: for how long hosts are wanted, 0: no limit.
        spares: hosts beyond `most` that wait until another one is lost.
        flags: the engine's own flags.
    """

    least: int
    most: int
    engine: str = BY_HAND
    cores: int = 0
    time_s: float = 0.0
    spares: int = 0
    flags: Mapping[str, str] = field(default_factory=dict)

    def flags_again(self) -> list[str]:
        """Returns the flags of a command that asks for the same hosts once more, but for how long."""
        hosts = str(self.least) if self.least == self.most else f"{self.least}:{self.most}"
        given = {"cores": str(self.cores or ""), "spares": str(self.spares or ""), **self.flags}
        others = [part for flag, value in given.items() if value for part in (f"--{flag}", value)]
        return ["--hosts", hosts, "--on", self.engine, *others]

    @property
    def needs(self) -> HostNeeds:
        """What each host must offer."""
        return HostNeeds(cores=self.cores, time_s=self.time_s)


def asked(
    hosts: tuple[int, int] | None,
    engine: str | None,
    cores: int | None,
    time_s: float | None,
    spares: int | None,
    flags: Mapping[str, str],
    default_hosts: int,
) -> HostsAsked | None:
    """Returns which hosts the flags of a command ask for; None if they ask for none, so that the run stays here.

    Args:
        hosts: (least, most) of `--hosts`; without it, `default_hosts` are wanted if there is an engine.
        engine: of `--on`; without it, agents are started by hand.

    Raises:
        ConfigurationError: there is no such engine, a flag does not belong to it, or a flag needs others.
    """
    if hosts is None and engine is None:
        given = {"--cores": cores, "--time": time_s, "--spares": spares, **{f"--{one}": flags[one] for one in flags}}
        for flag, value in given.items():
            if value is not None:
                raise ConfigurationError(f"{flag}: expected with --hosts or --on; a run on this machine has no hosts")
        return None
    chosen = engine or BY_HAND
    check_flags(chosen, flags)
    for flag, number, least, most in (("--cores", cores, 1, 4096), ("--spares", spares, 0, SPARES_MAX)):
        if number is not None and not least <= number <= most:
            raise ConfigurationError(f"{flag}: expected a number from {least} to {most:,}; found {number}")
    least_hosts, most_hosts = hosts or (default_hosts, default_hosts)
    return HostsAsked(least_hosts, most_hosts, chosen, cores or 0, time_s or 0.0, spares or 0, dict(flags))
