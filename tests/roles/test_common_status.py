"""What STATUS says of every role: refusals by code, traffic, quotas, the lease and the process."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.errors import HandshakeError, RemoteError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.roles.common_status import code_name, lease_status, network_status, process_status
from adamctl.roles.lease import Lease
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BenchBlockRequest, Empty, StatusRequest

BODY_BYTES = 1000


async def test_a_server_counts_what_it_answers_and_what_it_refuses() -> None:
    def handle(request: Request) -> None:
        if isinstance(request.message, StatusRequest):
            request.fail(ErrorCode.NOT_READY, "later")
        else:
            request.reply(Empty())

    transport = StreamTransport()
    hello, gone = make_hello("ps", "ps-1", token="right"), asyncio.Event()
    server = await transport.serve(["tcp://127.0.0.1:0"], hello, handle, on_disconnect=lambda _: gone.set())
    try:
        before = network_status(server)
        assert before["refusals"] == {} and before["connections"] == before["received_bytes"] == 0
        hello = make_hello("bench", "b", token="right")
        connection = await transport.connect(server.addresses[0], hello, deadline_s=10)
        await connection.request(BenchBlockRequest(1), (bytes(BODY_BYTES),), deadline_s=10)
        with pytest.raises(RemoteError):
            await connection.request(StatusRequest(), deadline_s=10)
        with pytest.raises(HandshakeError):
            await transport.connect(server.addresses[0], make_hello("bench", "c", token="wrong"), deadline_s=10)
        after = network_status(server)
        assert after["refusals"] == {"NOT_READY": 1, "WRONG_TOKEN": 1}
        assert after["connections"] == 1 < after["connections_max"]
        assert BODY_BYTES < after["received_bytes"] < BODY_BYTES + 500 and 0 < after["sent_bytes"] < 500
        for quota in ("request_bytes", "reply_bytes", "region_bytes"):
            assert 0 <= after[quota] < after[f"{quota}_max"]
        await connection.close()
        await asyncio.wait_for(gone.wait(), 10)
        later = network_status(server)
        assert later["connections"] == 0
        assert (later["received_bytes"], later["sent_bytes"]) == (after["received_bytes"], after["sent_bytes"])
    finally:
        await server.close()


def test_a_server_of_a_test_has_no_network() -> None:
    assert network_status(None) == {}


def test_a_lease_tells_how_long_it_holds() -> None:
    lease = Lease(4.0, lambda: 10.0)
    assert lease_status(lease) == {"valid": False, "left_s": 0.0}
    lease.sent(1, 9.0)
    lease.confirmed(1)
    assert lease_status(lease) == {"valid": True, "left_s": 3.0}
    assert lease_status(Lease.endless()) == {"valid": True}, "nobody watches it, so nothing runs out"


def test_a_process_tells_what_it_uses() -> None:
    first = process_status()
    sum(range(300_000))
    second = process_status()
    assert second["cpu_s"] > first["cpu_s"] and second["threads"] >= 1
    assert second.get("resident_bytes", 1 << 20) >= 1 << 20


def test_a_code_of_a_newer_version_has_its_number_for_a_name() -> None:
    assert (code_name(ErrorCode.OVER_QUOTA), code_name(9999)) == ("OVER_QUOTA", "9999")
