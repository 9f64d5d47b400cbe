"""The loop a process runs on."""

from __future__ import annotations

import asyncio
import threading

from adamctl.net.handshake import make_hello
from adamctl.net.loop import new_event_loop, run
from adamctl.net.stream import StreamTransport
from adamctl.wire.messages import BenchBlockRequest, Empty


def test_run_returns_the_result_and_uses_uvloop() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main()) == "uvloop"
    assert run(main(), loop_factory=asyncio.SelectorEventLoop).startswith("asyncio")


def test_several_loops_in_threads_have_nothing_in_common() -> None:
    results: list[int] = []

    async def main(number: int) -> None:
        transport = StreamTransport()
        server = await transport.serve(
            ["tcp://127.0.0.1:0"], make_hello("ps", f"ps-{number}"), lambda request: request.reply(Empty())
        )
        connection = await transport.connect(server.addresses[0], make_hello("w", "w"), deadline_s=30)
        assert connection.peer.node == f"ps-{number}"
        for _ in range(50):
            await connection.request(BenchBlockRequest(1), [bytes(50_000)], deadline_s=30)
        await connection.close()
        await server.close()
        results.append(number)

    threads = [
        threading.Thread(target=lambda number=number: run(main(number), loop_factory=new_event_loop))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]
