"""Limits and times of a controller. All members of a cluster must have the same limits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from adamctl.roles.controller.core_paxos import PaxosConfig


@dataclass(frozen=True)
class ControllerConfig:
    """A beacon comes every `beacon_interval_s`; a node silent for `lost_after_s` loses its key.

    A command is at most `command_bytes_max` long, so that the message that proposes it fits into a frame; commands are
    proposed together up to `batch_bytes_max`.
    """

    beacon_interval_s: float = 1.0
    lost_after_s: float = 5.0
    watchers_max: int = 4_096
    wait_s_max: float = 60.0
    history_keys_max: int = 16_384
    sessions_max: int = 4_096
    command_bytes_max: int = 28 << 20
    batch_bytes_max: int = 1 << 20
    batch_commands_max: int = 512
    paxos: PaxosConfig = field(default_factory=PaxosConfig)
