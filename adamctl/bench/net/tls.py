"""What TLS costs: bytes each way against blocking `SSLSocket`s and the cipher, a handshake, and those who have none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adamctl.bench.bars import Bar, Found, Progress, row_of
from adamctl.bench.net.tls_sides import (
    BLOCK_BYTES,
    Side,
    Way,
    make_certificates,
    our_client,
    our_server,
    plain_client,
    plain_server,
    processor_s,
)
from adamctl.bench.report import make_report
from adamctl.errors import RunFailedError
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import Credentials

PACKAGES = ("adamctl", "uvloop", "cryptography")
BARS = {
    "push": Bar("blocking SSLSocket, the slower end, bytes per processor second", 1.0, at_least=True),
    "pull": Bar("blocking SSLSocket, the slower end, bytes per processor second", 1.0, at_least=True),
    "cipher": Bar("openssl speed -bytes 16384 of the cipher, the slower end of both ways", 0.33, at_least=True),
    "handshake": Bar("milliseconds of processor time of both ends, with HELLO", 5.0),
    "plain": Bar("frames without TLS before, bytes per processor second", 0.98, at_least=True),
}
_WAYS: tuple[Way, ...] = ("push", "pull")
_STEP_S = 120.0


@dataclass(frozen=True)
class TlsSettings:
    """What is measured.

    Attributes:
        rounds: of each side; sides alternate, and the median counts.
        gigabytes: moved in each round.
        handshakes: connections made, one after another, in each round.
        before: a checkout of an earlier commit whose frames without TLS are measured, too; None: not.
    """

    rounds: int = 7
    gigabytes: float = 1.0
    handshakes: int = 100
    before: Path | None = None


def run_tls_benchmark(settings: TlsSettings, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Measures and returns the report that `adamctl bench tls --json` prints.

    Raises:
        ConfigurationError: the package that makes certificates is not installed.
        RunFailedError: a process of the benchmark ended.
    """
    found: dict[str, Found] = {}
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        folders = make_certificates(Path(folder))
        progress("each way, in turn with blocking sockets")
        found |= _each_way(settings, folders)
        progress("handshakes")
        found["handshake"] = _handshake(settings, folders)
    progress("without TLS, in turn with the commit before")
    found["plain"] = _plain(settings)
    return make_report("tls", PACKAGES, [row_of(name, bar, found[name], load) for name, bar in BARS.items()])


# --- each way ---------------------------------------------------------------------------------------------------------


def _each_way(settings: TlsSettings, folders: dict[str, Path]) -> dict[str, Found]:
    blocks = max(1, round(settings.gigabytes * 1e9 / BLOCK_BYTES))
    sides = {
        "ours": Side(our_server, our_client, folders),
        "SSLSocket": Side(plain_server, plain_client, folders),
    }
    rates: dict[tuple[str, Way, str], list[float]] = {}
    ciphers: list[float] = []
    try:
        for side in sides.values():
            for way in _WAYS:
                side.round(way, max(1, blocks // 8))
        for _ in range(settings.rounds):
            for way in _WAYS:
                for name, side in sides.items():
                    for end, seconds in side.round(way, blocks).items():
                        rates.setdefault((name, way, end), []).append(blocks * BLOCK_BYTES / 1e9 / seconds)
            ciphers += cipher_rate(sides["ours"].cipher)
    finally:
        for side in sides.values():
            side.close()
    medians = {key: statistics.median(values) for key, values in rates.items()}
    found: dict[str, Found] = {way: _way_row(way, medians) for way in _WAYS}
    found["cipher"] = _cipher_row(sides["ours"].cipher, ciphers, medians)
    return found


def _way_row(way: Way, medians: dict[tuple[str, Way, str], float]) -> Found:
    ends = {
        f"{name}_{end}_gb_per_s": round(medians[name, way, end], 3)
        for name in ("ours", "SSLSocket")
        for end in ("sender", "receiver")
    }
    ours, peers = (min(medians[name, way, end] for end in ("sender", "receiver")) for name in ("ours", "SSLSocket"))
    return {"ratio": round(ours / peers, 3), **ends}


def _cipher_row(cipher: str, rates: Sequence[float], medians: dict[tuple[str, Way, str], float]) -> Found:
    if not rates:
        return {"cannot": f"openssl, the program, is not installed, or cannot measure {cipher}"}
    rate = statistics.median(rates)
    slowest = min(value for (name, *_), value in medians.items() if name == "ours")
    return {"ratio": round(slowest / rate, 3), "cipher": cipher, "cipher_gb_per_s": round(rate, 3)}


def cipher_rate(cipher: str) -> list[float]:
    """Returns 10^9 bytes per processor second of `openssl speed` for a TLS 1.3 cipher; empty if it cannot be told."""
    program, name = shutil.which("openssl"), cipher.removeprefix("TLS_").rpartition("_")[0].replace("_", "-").lower()
    if program is None:
        return []
    command = [program, "speed", "-evp", name, "-bytes", "16384", "-seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_STEP_S, check=False)
    last = done.stdout.strip().rpartition("\n")[2].split()
    if done.returncode or not last or not last[-1].endswith("k"):
        return []
    return [float(last[-1].removesuffix("k")) / 1e6]


# --- handshakes -------------------------------------------------------------------------------------------------------


def _handshake(settings: TlsSettings, folders: dict[str, Path]) -> Found:
    async def measure() -> list[float]:
        server_side = StreamTransport(tls=Credentials(folders["server"]))
        server = await server_side.serve(["tcp://127.0.0.1:0"], make_hello("bench", "server"), lambda request: None)
        client_side, hello = StreamTransport(tls=Credentials(folders["client"])), make_hello("bench", "client")
        found = []
        for _ in range(settings.rounds):
            began_s = time.process_time()
            for _ in range(settings.handshakes):
                connection = await client_side.connect(server.addresses[0], hello, deadline_s=_STEP_S)
                await connection.close()
            await asyncio.sleep(0)
            found.append((time.process_time() - began_s) * 1000 / settings.handshakes)
        await server.close()
        return found

    rounds = run(measure())
    return {"ratio": round(statistics.median(rounds), 3), "handshakes": settings.handshakes}


# --- without TLS, against a commit before -----------------------------------------------------------------------------

_ROUNDS = """\
import json, sys, tempfile
from adamctl.bench.net.net import _Frames

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        frames = _Frames("tcp", folder, 1 << 20, one_way=False)
        print(json.dumps([frames._client.pid, frames._server.pid]), flush=True)
        for line in sys.stdin:
            frames.round(int(line))
            print("done", flush=True)
        frames.close()
"""
"""Run with either checkout: moves as many blocks as each line says, between the two processes that it names first."""


def _plain(settings: TlsSettings) -> Found:
    if settings.before is None:
        return {"cannot": "it needs a checkout of the commit before: --before DIR (git worktree add DIR COMMIT)"}
    blocks = max(1, round(settings.gigabytes * 2e9 / BLOCK_BYTES))
    here = Path(__file__).resolve().parents[3]
    seconds: dict[str, list[float]] = {"before": [], "now": []}
    with _rounds_of(settings.before) as before, _rounds_of(here) as now:
        for ask in (before, now):
            ask(max(1, blocks // 8))
        for number in range(settings.rounds):
            pairs = [("before", before), ("now", now)]
            for name, ask in pairs if number % 2 else reversed(pairs):
                seconds[name].append(ask(blocks))
    ratios = [first / second for first, second in zip(seconds["before"], seconds["now"], strict=True)]
    return {"ratio": round(statistics.median(ratios), 3), "rounds_s": seconds, "before": str(settings.before)}


@contextmanager
def _rounds_of(checkout: Path) -> Iterator[Callable[[int], float]]:
    """Starts `_ROUNDS` with the code in a checkout; yields what moves blocks and returns the processor seconds."""
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        program = Path(folder, "rounds.py")
        program.write_text(_ROUNDS)
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder,
        )  # fmt: skip

        def answer() -> str:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RunFailedError(f"the frames of {checkout} cannot be measured; its output says why")
            return line

        def ask(blocks: int) -> float:
            assert process.stdin is not None
            before_s = sum(map(processor_s, pids))
            process.stdin.write(f"{blocks}\n")
            process.stdin.flush()
            answer()
            return sum(map(processor_s, pids)) - before_s

        pids: list[int] = json.loads(answer())
        try:
            yield ask
        finally:
            process.communicate(timeout=_STEP_S)
