"""The memory of a data server: how much of it is for examples, and how much for what is prepared and sent."""

from __future__ import annotations

from typing import Final, NamedTuple

from adamctl.errors import ConfigurationError

_BUFFERS_BYTES_MAX: Final = 512 << 20
_BUFFERS_BYTES_MIN: Final = 128 << 20
_BUFFERS_BYTES_LEAST: Final = 64 << 20
"""Two bodies of the largest size: with less, ranges could neither be prepared ahead nor be refused in turn."""
MEMORY_BYTES_MIN: Final = 2 * _BUFFERS_BYTES_LEAST
_MEMORY_SHARE_MAX: Final = 0.9
"""A client that opens a data set says how much of a server's memory it may use; others need some as well."""


class ServerMemory(NamedTuple):
    """`data.memory_share` is a share of `examples_bytes`; `buffers_bytes` bounds prepared ranges and replies."""

    examples_bytes: int
    buffers_bytes: int


def memory_of_machine(total_bytes: int) -> ServerMemory:
    """Returns the memory of a server that nobody bounds, on a machine with so much."""
    return ServerMemory(total_bytes, max(min(_BUFFERS_BYTES_MAX, total_bytes // 8), _BUFFERS_BYTES_MIN))


def memory_of_option(text: str | None) -> ServerMemory | None:
    """Returns the memory that `--memory` gives; None if it is not given. Both parts together are within it.

    Raises:
        ConfigurationError: it is no size, or too small for any server.
    """
    from adamctl.config.partitioning import parse_size

    if text is None:
        return None
    try:
        total_bytes = parse_size(text)
    except ValueError as error:
        raise ConfigurationError(f"--memory: {error}") from error
    if total_bytes < MEMORY_BYTES_MIN:
        raise ConfigurationError(f"--memory: expected at least {MEMORY_BYTES_MIN >> 20} MiB, found {text}")
    buffers_bytes = max(min(_BUFFERS_BYTES_MAX, total_bytes // 8), _BUFFERS_BYTES_LEAST)
    return ServerMemory(total_bytes - buffers_bytes, buffers_bytes)


def bytes_for(memory_share: float, memory_bytes: int | None = None) -> int:
    """Returns what `data.memory_share` is of a server's memory; None: of this machine's."""
    if memory_bytes is None:
        import psutil

        memory_bytes = int(psutil.virtual_memory().total)
    return int(min(memory_share, _MEMORY_SHARE_MAX) * memory_bytes)
