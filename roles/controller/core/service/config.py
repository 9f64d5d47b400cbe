"""Limits and times of a controller. All members of a cluster must have the same limits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from adamctl.errors import ConfigurationError
from adamctl.roles.controller.core.paxos.paxos_core import PaxosConfig

LEASE_S = 4.0
LEASE_S_MIN = 0.4
GRANT_FACTOR = 1.25
DRIFT_MAX = 0.01
MARGIN_S = 0.05
RETIRE_AFTER_S = 600.0
BEACONS_PER_LEASE = 4
BEACON_INTERVAL_S_MAX = 1.0


@dataclass(frozen=True)
class ControllerConfig:
    """A beacon comes every `beacon_interval_s`; a node silent for `lost_after_s` (G) loses its key.

    `lease_s` (D; 0: four fifths of G) is what a node is told: how long it may consider itself a member, counted from
    when it SENT a beacon. G is counted by another clock from when the beacon arrived, so it must be greater than D * (1
    + r) / (1 - r) for clocks whose rate is off by at most r.

    A client's incarnation is retired when its node has been gone for `retire_after_s`.

    A command has at most `command_bytes_max` bytes, so that the message that proposes it fits into a frame; commands
    are proposed together up to `batch_bytes_max`.
    """

    beacon_interval_s: float = 1.0
    lost_after_s: float = 5.0
    lease_s: float = 0.0
    retire_after_s: float = RETIRE_AFTER_S
    watchers_max: int = 4_096
    wait_s_max: float = 60.0
    history_keys_max: int = 16_384
    sessions_max: int = 4_096
    command_bytes_max: int = 28 << 20
    batch_bytes_max: int = 1 << 20
    batch_commands_max: int = 512
    paxos: PaxosConfig = field(default_factory=PaxosConfig)

    @property
    def granted_s(self) -> float:
        """D."""
        return self.lease_s or self.lost_after_s / GRANT_FACTOR


def silence_allowed_s(lease_s: float) -> float:
    """Returns G for a lease of D seconds."""
    return max(GRANT_FACTOR * lease_s, _silence_least_s(lease_s))


def _silence_least_s(lease_s: float) -> float:
    return lease_s * (1 + DRIFT_MAX) / (1 - DRIFT_MAX) + MARGIN_S


def lease_config(
    lease_s: float | None, lost_after_s: float | None, retire_after_s: float | None = None
) -> ControllerConfig:
    """Returns the times that `--lease` and `--lost-after` ask for; one that is not given follows from the other.

    `retire_after_s` is that of `--retire-after`.

    Raises:
        ConfigurationError: a time is too short, or a node would be declared lost while its lease still holds.
    """
    for flag, value, least in (("--lease", lease_s, LEASE_S_MIN), ("--lost-after", lost_after_s, 0.5)):
        if value is not None and value < least:
            raise ConfigurationError(f"{flag}: expected at least {least:g} seconds, found {value:g}")
    if lease_s is None:
        lease_s = LEASE_S if lost_after_s is None else lost_after_s / GRANT_FACTOR
    if lost_after_s is None:
        lost_after_s = silence_allowed_s(lease_s)
    if lost_after_s < _silence_least_s(lease_s):
        raise ConfigurationError(
            f"--lost-after: found {lost_after_s:g} seconds with a lease of {lease_s:g}; expected at least "
            f"{_silence_least_s(lease_s):.2f}: clocks drift; leave it out, or give a shorter --lease"
        )
    if retire_after_s is None:
        retire_after_s = max(RETIRE_AFTER_S, lost_after_s)
    if retire_after_s < lost_after_s:
        raise ConfigurationError(
            f"--retire-after: expected at least the {lost_after_s:g} seconds after which a node is lost, found "
            f"{retire_after_s:g}"
        )
    interval_s = min(BEACON_INTERVAL_S_MAX, lease_s / BEACONS_PER_LEASE)
    return ControllerConfig(
        beacon_interval_s=interval_s, lost_after_s=lost_after_s, lease_s=lease_s, retire_after_s=retire_after_s
    )
