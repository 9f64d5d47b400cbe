"""PyTorch's RPC on the same machine: its transports and windows are tried once and the best one is kept.

A peer is started for each round and ended after it: its shared-memory transport polls all the time and would take a
core from the next measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adamctl.bench.peer import PeerProcess
from adamctl.bench.ps.job import FactorsSize
from adamctl.errors import ConfigurationError

PROGRAM = "torch_rpc.py"
TRANSPORTS = {"tcp": ("uv",)}
"""Our transport -> PyTorch's comparable ones; for transports not named here, all."""
ALL_TRANSPORTS = ("shm", "uv")
WINDOWS = (2, 4, 8, 16)
START_S = 120.0
RUN_SLACK_S = 60.0
MODES = ("push", "pull", "factors")


@dataclass(frozen=True)
class TorchRate:
    """The best round of a mode: bytes of values and parameter updates per second, and PyTorch's settings."""

    bytes_per_s: float
    updates_per_s: float
    transport: str
    window: int


class TorchRpc:
    """The peer of one benchmark.

    Attributes:
        best: mode -> its best rate so far.
        version: PyTorch's version.
    """

    def __init__(
        self, python: str, transport: str, blocks: int, block_bytes: int, size: FactorsSize, threads: int
    ) -> None:
        self.best: dict[str, TorchRate] = {}
        self.version = ""
        self._python, self._threads = python, threads
        self._transports = TRANSPORTS.get(transport, ALL_TRANSPORTS)
        factors = [size.outputs, size.inputs, size.examples]
        self._start = {"do": "start", "blocks": blocks, "block_bytes": block_bytes, "factors": factors}

    def scan(self, modes: Sequence[str], seconds: float, progress: Callable[[str], None]) -> None:
        """Tries every transport with every window.

        Raises:
            ConfigurationError: PyTorch is missing, or none of its transports works here.
        """
        problem = ""
        for transport in self._transports:
            progress(f"PyTorch RPC over {transport}: windows of {', '.join(map(str, WINDOWS))} calls")
            try:
                with PeerProcess(self._python, PROGRAM, self._threads) as peer:
                    self._begin(peer, transport)
                    for mode in modes:
                        for window in WINDOWS:
                            self._run(peer, mode, transport, window, seconds)
            except ConfigurationError as error:
                problem = str(error)
        if not self.best:
            raise ConfigurationError(problem)

    def round(self, modes: Sequence[str], seconds: float) -> None:
        """Runs each mode once more in its best setting."""
        for transport in self._transports:
            here = [mode for mode in modes if mode in self.best and self.best[mode].transport == transport]
            if here:
                with PeerProcess(self._python, PROGRAM, self._threads) as peer:
                    self._begin(peer, transport)
                    for mode in here:
                        self._run(peer, mode, transport, self.best[mode].window, seconds)

    def _begin(self, peer: PeerProcess, transport: str) -> None:
        answer = _checked(peer.ask(self._start | {"transport": transport}, START_S))
        self.version = str(answer["torch_version"])

    def _run(self, peer: PeerProcess, mode: str, transport: str, window: int, seconds: float) -> None:
        request = {"do": "run", "mode": mode, "window": window, "seconds": seconds}
        answer = _checked(peer.ask(request, seconds + RUN_SLACK_S))
        took = answer["seconds"]
        rate = TorchRate(answer["bytes"] / took, answer["updates"] / took, transport, window)
        if mode not in self.best or rate.bytes_per_s > self.best[mode].bytes_per_s:
            self.best[mode] = rate


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["ok"]:
        raise ConfigurationError(f"PyTorch RPC: {answer['error']}")
    return answer
