"""Who asked for what is written down, as one line that can be neither forged nor flooded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.config.records import DrainRecord, drain_key, encode
from adamctl.errors import RemoteError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.roles.audit import LINES_MAX, RECENT_MAX, Audit, is_audited
from adamctl.roles.context import RoleContext
from adamctl.roles.process import CommonOptions, logging_to
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import (
    ConfigChanges,
    ControllerReplaceRequest,
    Empty,
    Message,
    NodeLeaveRequest,
    RunStopRequest,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from adamctl.wire.permissions import KNOWN_ROLES
from tests.cluster import memory_cluster

TOKEN = "a-token-of-more-than-32-characters"
BY_ANYBODY = {
    "SHUTDOWN", "CONTROLLER_REPLACE", "CONTROLLER_BACKUP", "CONTROLLER_RESTORE", "RUN_STOP", "RUN_CHECKPOINT",
}  # fmt: skip
BY_OPERATORS = {"CONFIG_COMPARE_AND_SET", "NODE_LEAVE"}


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "adamctl.audit"]


def without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "unix_s"}


@pytest.fixture
def audit_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="adamctl")
    return caplog


@asynccontextmanager
async def served(address: str) -> AsyncIterator[RoleContext]:
    def handle(request: Request) -> None:
        if isinstance(request.message, RunStopRequest):
            raise RemoteError(ErrorCode.RUN_ENDED, "the run has ended\n\x1b[2J")
        request.reply(Empty())

    context = RoleContext(
        "coordinator", "c-0", {}, StreamTransport(), None, asyncio.Event(), logging.getLogger("adamctl.t"), token=TOKEN
    )
    await context.serve(handle, addresses=(address,))
    try:
        yield context
    finally:
        await context.close()


async def ask(context: RoleContext, role: str, message: Message, kind: Any = "tcp") -> None:
    hello = make_hello(role, f"{role}-1", 0, TOKEN)
    connection = await StreamTransport(kind=kind).connect(context.addresses[0], hello, deadline_s=10)
    try:
        await connection.request(message, deadline_s=10)
    except RemoteError:
        pass
    finally:
        await connection.close()


@pytest.mark.parametrize("role", sorted(KNOWN_ROLES))
def test_which_messages_are_administrative(role: str) -> None:
    expected = BY_ANYBODY | (BY_OPERATORS if role in ("front", "operator") else set())
    request: Any = SimpleNamespace(peer=make_hello(role, "n"))
    assert {opcode.name for opcode in Opcode if is_audited(opcode, request)} == expected


async def test_what_was_done_and_what_was_refused_is_one_line_each(audit_log: pytest.LogCaptureFixture) -> None:
    async with served("tcp://127.0.0.1:0") as context:
        await ask(context, "front", ShutdownRequest("no longer needed"))
        await ask(context, "worker", ShutdownRequest("I say so"))
        await ask(context, "operator", RunStopRequest("enough", False))
    told = [without_time(line) for line in lines_of(audit_log)]
    common = {"to": "coordinator/c-0", "by": "token"}
    assert told == [
        common | {"who": "front/front-1", "message": "SHUTDOWN", "what": {"reason": "no longer needed", "drain_s": 0.0},
                  "result": "done"},
        common | {"who": "worker/worker-1", "message": "SHUTDOWN", "what": {"reason": "I say so", "drain_s": 0.0},
                  "result": "NOT_ALLOWED: a worker may not send SHUTDOWN to coordinator c-0"},
        common | {"who": "operator/operator-1", "message": "RUN_STOP",
                  "what": {"reason": "enough", "checkpoint": False},
                  "result": "RUN_ENDED: the run has ended\n\x1b[2J"},
    ]  # fmt: skip


async def test_over_a_unix_socket_the_system_says_who_it_is(
    audit_log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with served(f"unix://{tmp_path}/s") as context:
        await ask(context, "front", ShutdownRequest("x"), "unix")
    assert [line["by"] for line in lines_of(audit_log)] == ["same user"]


async def test_a_line_can_be_neither_forged_nor_long(tmp_path: Path) -> None:
    """Under any level of the log, whatever a sender writes."""
    log_file = tmp_path / "log"
    hostile = "\n2026-01-01 INFO ps ps-0 {}\x1b[2J\u202e\x00" + "x" * 50_000
    with logging_to("coordinator", "c-0", CommonOptions(log_level="error", log_file=log_file)):
        async with served("tcp://127.0.0.1:0") as context:
            await ask(context, "front", ShutdownRequest(hostile))
    (line,) = log_file.read_text().splitlines()
    assert line.isascii() and line.isprintable() and len(line) < 1000
    assert json.loads(line[line.index("{") :])["what"]["reason"].startswith("\n2026-01-01")


async def test_who_sends_many_fills_no_disk(audit_log: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    audit = Audit("ps", "ps-0", lambda: now[0])
    for number in range(10 * LINES_MAX):
        audit.tell({"who": "worker/w", "result": str(number)})
    audit.tell({"who": "front/f", "result": "done"})
    assert len(lines_of(audit_log)) == LINES_MAX + 1
    now[0] = 11.0
    audit.tell({"who": "front/f", "result": "done"})
    *_, counted, last = lines_of(audit_log)
    assert counted["who"] == "worker/w" and counted["what"] == f"and {9 * LINES_MAX} more messages in 10 s"
    assert last["result"] == "done"
    assert len(audit.recent) == RECENT_MAX and audit.recent[-1] == last


async def test_a_controllers_status_fits_into_a_header_whatever_the_lines_say() -> None:
    """Also lines about what was refused, from whoever may connect; each character takes four bytes."""
    long = "\U0001f600" * 1000
    async with memory_cluster(3) as cluster:
        connection = await cluster.network.connect("memory://controller-0", make_hello("worker", "w-0"), deadline_s=5)
        for number in range(RECENT_MAX):
            with pytest.raises(RemoteError, match="a worker may not send CONTROLLER_REPLACE"):
                await connection.request(ControllerReplaceRequest(f"{number}{long}", long, long), deadline_s=10)
        await connection.close()
        front = await cluster.network.connect("memory://controller-0", make_hello("front", "f-0"), deadline_s=5)
        reply = (await front.request(StatusRequest(), deadline_s=5)).message
        await front.close()
    assert isinstance(reply, StatusReply)
    assert reply.status["audit"][-1]["what"]["old"].startswith(f"{RECENT_MAX - 1}") and len(reply.status["audit"]) > 1


async def test_controllers_tell_what_operators_changed(audit_log: pytest.LogCaptureFixture) -> None:
    drained = ConfigChanges({drain_key("ps-0"): 0}, {drain_key("ps-0"): encode(DrainRecord(1, 1.0))})
    async with memory_cluster(3) as cluster:
        await cluster.client.compare_and_set(drained)
        await cluster.client.compare_and_set(drained)
        await cluster.client.compare_and_set(ConfigChanges({}, {}, tuple(f"/drains/{n}" for n in range(20))))
        for message in (NodeLeaveRequest("ps-9", 3, "gone"), ControllerReplaceRequest("a", "b", "memory://b")):
            connection = await cluster.network.connect(
                "memory://controller-0", make_hello("front", "test-0"), deadline_s=5
            )
            try:
                await connection.request(message, deadline_s=10)
            except RemoteError as error:
                assert error.code == ErrorCode.BAD_CONFIGURATION
            await connection.close()
        (status,) = [cluster.controller.status()]
    told = [without_time(line) for line in lines_of(audit_log)]
    assert [(line["message"], line["what"], line["result"]) for line in told[:2]] == [
        ("CONFIG_COMPARE_AND_SET", {"puts": ["/drains/ps-0"]}, "done"),
        ("CONFIG_COMPARE_AND_SET", {"puts": ["/drains/ps-0"]}, "conflict: /drains/ps-0"),
    ]
    assert len(told[2]["what"]["deletes"]) == 9 and told[2]["what"]["deletes"][-1] == "and 12 more"
    assert [line["message"] for line in told[3:]] == ["NODE_LEAVE", "CONTROLLER_REPLACE"]
    assert told[4]["result"].startswith("BAD_CONFIGURATION: ")
    assert {line["by"] for line in told} == {"nothing"}
    assert [without_time(line) for line in status["audit"]] == told
