"""A parameter server's flags as typed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.errors import ConfigurationError
from adamctl.kernels.threads import available_cores
from adamctl.net.address import parse_address
from adamctl.roles.context import DRAIN_S_MAX
from adamctl.roles.ps.core.flush import FlushConfig

CHECKPOINT_ROOT = "runs"
"""The default folder of runs, relative to the folder in which a command is started."""
THREADS_MAX = 256
WINDOW_S_MAX = 3600.0
AUTO_WINDOW_S_MAX = 60.0
FORGET_AFTER_S = 3600.0
REGION_BYTES_PER_MEMORY_BYTE = 4
SIZE_BYTES_MAX = 1 << 60
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class ServerOptions:
    """A server's settings. `store` is the folder of its log, None to keep nothing on disk.

    `forget_after_s`: a job that has not ended is freed after no controller has known it for this many seconds.
    `checkpoint_roots`: folders in which clients may have the server write and read checkpoints.
    `drain_on_term_s`: for how long SIGTERM has it move off what it holds before it ends; 0: it ends at once.
    `failure_domain`: name of what fails together with the server; empty: its machine.

    An empty address means the default: `--bind` and `--port` for clients, and the clients' address for everything else
    (Adam 3.3.4).
    """

    apply_threads: int
    memory_bytes_max: int
    store: Path | None
    flush: FlushConfig
    listen: str = ""
    admin_listen: str = ""
    replication_listen: str = ""
    forget_after_s: float = FORGET_AFTER_S
    checkpoint_roots: tuple[str, ...] = (CHECKPOINT_ROOT,)
    failure_domain: str = ""
    drain_on_term_s: float = 0.0

    @property
    def applies_arriving(self) -> bool:
        """Whether the event loop applies arriving pushes: unless two apply threads have cores besides the loop's."""
        return min(self.apply_threads, available_cores() - 1) <= 1

    @property
    def region_bytes_max(self) -> int:
        """Limit of mapped client memory on this machine: enough for a few clients with several buffers of a model."""
        return REGION_BYTES_PER_MEMORY_BYTE * self.memory_bytes_max


def server_options(options: Mapping[str, Any]) -> ServerOptions:
    """Raises ConfigurationError naming the flag, what was found and what is allowed."""
    folder = str(options.get("store") or "")
    window_s, window_s_max = _window(str(options.get("loss_window_s", "auto")))
    window_bytes = size_bytes("--loss-window-bytes", str(options.get("loss_window_bytes", "4GB")))
    return ServerOptions(
        thread_count(str(options.get("apply_threads", "auto"))),
        size_bytes("--memory", str(options.get("memory", "80%"))),
        Path(folder) if folder else None,
        FlushConfig(window_s=window_s, window_bytes=window_bytes, window_s_max=window_s_max),
        listen=_address("--listen", options),
        admin_listen=_address("--admin-listen", options),
        replication_listen=_address("--replication-listen", options),
        forget_after_s=_seconds("--forget-after-s", options.get("forget_after_s", FORGET_AFTER_S)),
        checkpoint_roots=tuple(options.get("checkpoint_root") or (CHECKPOINT_ROOT,)),
        failure_domain=_domain(str(options.get("failure_domain") or "")),
        drain_on_term_s=_drain_s(options.get("drain_on_term")),
    )


def _drain_s(text: Any) -> float:
    if text is None or text == "":
        return 0.0
    seconds = _seconds("--drain-on-term", text)
    if seconds > DRAIN_S_MAX:
        raise ConfigurationError(f"--drain-on-term: expected at most {DRAIN_S_MAX:g} seconds; found {text}")
    return seconds


def _domain(name: str) -> str:
    if name and not is_name(name):
        raise ConfigurationError(f"--failure-domain: expected {NAME_EXPECTED}; found {name!a}")
    return name


def _seconds(flag: str, text: Any) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"{flag}: expected seconds above 0; found {text}")
    return seconds


def _address(flag: str, options: Mapping[str, Any]) -> str:
    text = str(options.get(flag.removeprefix("--").replace("-", "_")) or "")
    try:
        return str(parse_address(text)) if text else ""
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag}: {error}") from error


def _window(text: str) -> tuple[float, float | None]:
    """Returns the loss window in seconds, and how long it may grow (None: it does not)."""
    if text == "auto":
        return FlushConfig.window_s, AUTO_WINDOW_S_MAX
    try:
        window_s = float(text)
    except ValueError:
        window_s = 0.0
    if not 0 < window_s <= WINDOW_S_MAX:
        raise ConfigurationError(
            f"--loss-window-s: expected auto, or above 0 and at most {WINDOW_S_MAX:g} seconds; found {text}"
        )
    return window_s, None


def thread_count(text: str) -> int:
    """Returns the number of apply threads for `--apply-threads`; `auto` uses half of the cores.

    0 means none: updates are applied on the event loop; for tests.

    Raises:
        ConfigurationError: it is neither `auto` nor a valid number.
    """
    if text == "auto":
        return max(available_cores() // 2, 1)
    if not text.isdecimal() or int(text) > THREADS_MAX:
        raise ConfigurationError(f"--apply-threads: expected auto or a number up to {THREADS_MAX}; found {text!r}")
    return int(text)


def size_bytes(flag: str, text: str) -> int:
    """Parses a flag's size in bytes: a size such as 8GB, or a share of this machine's memory such as 50%.

    Raises:
        ConfigurationError: it is neither of the two, below one byte, or too large.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGT]?B?)\s*", text, re.IGNORECASE)
    if found is None:
        raise ConfigurationError(f"{flag}: expected a size such as 8GB or a share such as 50%; found {text!r}")
    amount, unit = float(found[1]), found[2].upper()
    if unit == "%" and amount > 100:
        raise ConfigurationError(f"{flag}: expected at most 100% of this machine's memory; found {text!r}")
    whole = psutil.virtual_memory().total / 100 if unit == "%" else _UNITS[unit.rstrip("B")]
    if not 1 <= amount * whole < SIZE_BYTES_MAX:
        raise ConfigurationError(f"{flag}: expected from 1 byte to {SIZE_BYTES_MAX >> 40} TB; found {text!r}")
    return int(amount * whole)
