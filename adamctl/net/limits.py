"""Limits of servers and clients: every queue, buffer and wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.errors import ConfigurationError
from adamctl.wire.constants import BODY_BYTES_MAX


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of one server. A peer that reaches one has to wait; a peer that makes no progress is disconnected.

    Attributes:
        connections_max: connections that have said HELLO; another one is refused with OVER_QUOTA.
        handshakes_max: connections that have not; another one cuts the oldest one of the address with the most of them.
        hello_timeout_s: silence before HELLO after which a connection is cut.
        requests_per_connection_max: requests not answered yet (answers not yet sent count); more are not read.
        credit_bytes: bytes of request bodies that each client may have in flight.
        memory_bytes_max: quota of the pool into which all bodies are received.
        reply_bytes_max: bytes of answers per connection that the kernel has not taken; beyond this, no more requests of
            that connection are read.
        reply_memory_bytes_max: the same for all connections together; beyond this, no requests are read, and peers that
            take fewer than `reply_pace_bytes_per_s` for longer than `reply_patience_s` are cut, largest debt first.
        region_bytes_max: bytes of all clients' memory that we map; data of a region beyond this go through the socket.
        regions_max: regions that each connection may register.
        frame_timeout_s: how long one frame may take from its first byte to its last while we are reading.
        write_stall_timeout_s: how long a peer may take none of the bytes it is sent.
        log_lines_per_address_max: lines about the peers of one address (of one user, over Unix sockets) that are
            logged in each `log_window_s`; further ones are only counted.
        backlog: connections that the kernel may queue before they are accepted.
    """

    connections_max: int = 1024
    handshakes_max: int = 256
    hello_timeout_s: float = 5.0
    requests_per_connection_max: int = 1024
    credit_bytes: int = 64 << 20
    memory_bytes_max: int = 1 << 30
    reply_bytes_max: int = 64 << 20
    reply_memory_bytes_max: int = 1 << 30
    reply_pace_bytes_per_s: int = 1 << 20
    reply_patience_s: float = 2.0
    region_bytes_max: int = 4 << 30
    regions_max: int = 64
    frame_timeout_s: float = 60.0
    write_stall_timeout_s: float = 60.0
    log_lines_per_address_max: int = 10
    log_window_s: float = 10.0
    backlog: int = 1024

    def __post_init__(self) -> None:
        if self.memory_bytes_max < BODY_BYTES_MAX:
            raise ConfigurationError(
                f"a server's memory quota must hold the longest body, {BODY_BYTES_MAX} bytes; "
                f"found {self.memory_bytes_max}"
            )
        for name in (
            "connections_max", "handshakes_max", "requests_per_connection_max", "credit_bytes", "backlog",
            "log_lines_per_address_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}: expected at least 1, found {getattr(self, name)}")

    @property
    def sweep_interval_s(self) -> float:
        """How often a server checks for stuck peers: late by at most a quarter of the shortest timeout."""
        return min(0.5, min(self.hello_timeout_s, self.frame_timeout_s, self.write_stall_timeout_s) / 4)


@dataclass(frozen=True)
class ClientLimits:
    """Bounds of one client: outstanding requests per connection, and memory for replies received without `into`."""

    requests_per_connection_max: int = 1024
    memory_bytes_max: int = 1 << 30


def admits(in_flight_bytes: int, size_bytes: int, credit_bytes: int) -> bool:
    """Whether a body may be added to those in flight; both sides decide the same way (docs/formats/wire.md, Credits).

    A body longer than three quarters of the credit would wait forever, so it goes when little else is in flight.
    """
    return in_flight_bytes + size_bytes <= credit_bytes or in_flight_bytes <= credit_bytes // 4
