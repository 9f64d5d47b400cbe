"""1 MiB frames over one connection between two processes, against plain blocking sockets.

"Plain" is `adamctl.bench.net.plain_sockets`. "Ours" is BENCH_BLOCK frames through `StreamTransport`, sent within
credit, received by a server process into pooled buffers and dropped, each answered ("acknowledged") or not ("one_way").
Rounds of both alternate, so that both see the same machine state; the best of each is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adamctl.bench.child import START_S, Child, Pipe
from adamctl.bench.net.plain_sockets import BLOCK_BYTES, ROUND_S, PlainSockets
from adamctl.bench.report import make_report
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.messages import BenchBlockRequest, Empty

PACKAGES = ("adamctl", "uvloop", "msgspec")
_SENDERS = 16


def _frame_server(scheme: str, folder: str, pipe: Pipe) -> None:
    async def serve() -> None:
        done = asyncio.Event()

        def handle(request: Request) -> None:
            request.reply(Empty())

        address = f"unix://{folder}/frames.sock" if scheme == "unix" else "tcp://127.0.0.1:0"
        server = await StreamTransport().serve(
            [address], make_hello("bench", "server"), handle, on_disconnect=lambda _: done.set()
        )
        pipe.send(server.addresses[0])
        await done.wait()
        await server.close()

    run(serve())


def _frame_client(address: str, one_way: bool, block_bytes: int, pipe: Pipe) -> None:
    """Sends rounds on request through the pipe: a client process, so that the measuring process does not disturb it."""

    async def send(blocks: int, connection: Any, block: bytearray) -> None:
        counter = iter(range(blocks))

        async def some() -> None:
            for number in counter:
                if one_way:
                    await connection.send_one_way(BenchBlockRequest(number), (block,), deadline_s=ROUND_S)
                else:
                    await connection.request(BenchBlockRequest(number, True), (block,), deadline_s=ROUND_S)

        await asyncio.gather(*(some() for _ in range(_SENDERS)))
        await connection.request(BenchBlockRequest(blocks, True), deadline_s=ROUND_S)

    async def main() -> None:
        connection = await StreamTransport().connect(address, make_hello("bench", "client"), deadline_s=START_S)
        block = bytearray(block_bytes)
        pipe.send("ready")
        while (blocks := pipe.recv()) is not None:
            start = time.perf_counter()
            await send(blocks, connection, block)
            pipe.send(time.perf_counter() - start)
        await connection.close()

    run(main())


class _Frames:
    """Rounds through our transport."""

    def __init__(self, scheme: str, folder: str, block_bytes: int, *, one_way: bool) -> None:
        self._server = Child(_frame_server, scheme, folder)
        self._client = Child(_frame_client, self._server.receive(START_S), one_way, block_bytes)
        self._client.receive(START_S)

    def round(self, blocks: int) -> float:
        """Returns the seconds from the first frame until the server has answered the last one."""
        return float(self._client.ask(blocks, ROUND_S))

    def close(self) -> None:
        self._client.close()
        self._server.close()


def _measure(scheme: str, blocks: int, block_bytes: int, rounds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as parent:
        folders = [str(Path(parent, name)) for name in ("p", "o", "a")]
        for folder in folders:
            Path(folder).mkdir()
        plain = PlainSockets(scheme, folders[0], block_bytes)
        cases = {
            "one_way": _Frames(scheme, folders[1], block_bytes, one_way=True),
            "acknowledged": _Frames(scheme, folders[2], block_bytes, one_way=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ("plain", *cases)}
        warm_up = max(1, blocks // 8)
        everyone: tuple[PlainSockets | _Frames, ...] = (plain, *cases.values())
        for case in everyone:
            case.round(warm_up)
        for _ in range(rounds):
            seconds["plain"].append(plain.round(blocks))
            for name, frames in cases.items():
                seconds[name].append(frames.round(blocks))
        for case in everyone:
            case.close()
    gigabytes = blocks * block_bytes / 1e9
    limit = gigabytes / min(seconds["plain"])
    return [
        {
            "transport": scheme,
            "mode": name,
            "block_bytes": block_bytes,
            "blocks_per_round": blocks,
            "rounds": rounds,
            "warm_up_blocks": warm_up,
            "gb_per_s": round(gigabytes / min(seconds[name]), 3),
            "limit": "plain blocking sockets, same run",
            "limit_gb_per_s": round(limit, 3),
            "fraction_of_limit": round(gigabytes / min(seconds[name]) / limit, 3),
        }
        for name in cases
    ]


def run_net_benchmark(
    *,
    transports: Sequence[str] = ("tcp", "unix"),
    bytes_per_round: int = 2_000_000_000,
    rounds: int = 5,
    block_bytes: int = BLOCK_BYTES,
) -> dict[str, Any]:
    """Measures and returns the report; the best round of each side counts.

    Args:
        transports: "tcp" (loopback) and "unix".
        bytes_per_round: body bytes per round, rounded up to whole blocks.
        rounds: how often each side runs; the sides alternate.
        block_bytes: body of one frame.
    """
    blocks = -(-bytes_per_round // block_bytes)
    results = [result for scheme in transports for result in _measure(scheme, blocks, block_bytes, rounds)]
    return make_report("net", PACKAGES, results)


def main() -> None:
    """`python -m adamctl.bench.net.net`: the same as `adamctl bench net --json`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--transport", action="append", choices=("tcp", "unix"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    arguments = parser.parse_args()
    report = run_net_benchmark(
        transports=arguments.transport or ("tcp", "unix"),
        rounds=arguments.rounds,
        bytes_per_round=int(arguments.gigabytes * 1e9),
    )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
