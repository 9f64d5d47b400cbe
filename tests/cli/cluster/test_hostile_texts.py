"""Whatever a process of the cluster says of itself, no command passes it to the terminal as it is, or at any length."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.errors import RemoteError
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest, StatusReply, StatusRequest
from tests.cli.cluster.test_state import adamctl
from tests.roles.controller.members import client_of, members_on
from tests.roles.ps.ps_cluster import make_tensors
from tests.wire.any_message import any_value

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\nadamctl: error: all is lost\u202e\u2066\u2028\x9b31m\x7f\b"
LONG = HOSTILE * 30
LAYOUT = LayoutRecord(make_tensors(((4, 4),)), 1)
KEYS = (
    "state", "job", "jobs", "error", "messages", "replication", "store", "progress", "pass_number", "images_per_s",
    "loss", "top1", "eta_seconds", "partitions", "replicas", "lobby", "batch", "waits", "threads", "batches", "updates",
    "connections", "datasets", "clients", "memory", "pushes_per_s", "uptime_s", "members", "cut",
)  # fmt: skip
JOB = f"a{HOSTILE[:6]}\n"
COMMANDS = (("status",), ("status", "--json"), ("events",), ("shards", "--job", JOB), ("drain", "nobody"))
SLOW_COMMANDS = (
    *COMMANDS, ("top", "--once"), ("events", "--json"), ("shards", "--check"), ("shards", "--json"), ("recover", JOB),
    ("recover", "b"), ("drain", "ps-1", "--no-wait"),
)  # fmt: skip


def clean(result: subprocess.CompletedProcess[str]) -> None:
    for text in (result.stdout, result.stderr):
        assert all(character.isprintable() or character == "\n" for character in text), (result.args, text[:500])
        assert max(map(len, text.split("\n"))) < 20_000 and len(text) < 400_000, result.args
        assert not any(line.startswith("adamctl: error: all is lost") for line in text.split("\n"))
    assert "Traceback" not in result.stderr, result.stderr[-1500:]
    if "--json" in result.args and result.stdout:
        json.loads(result.stdout)


@asynccontextmanager
async def liars(folder: Path, statuses: dict[str, dict[str, Any]]) -> AsyncIterator[str]:
    """A controller, and members of each role that say what they like; yields the controller's address."""
    async with members_on(folder, 1) as members:
        address = members["a"].peers["a"]
        servers, clients = [], []
        for role, status in statuses.items():

            def handle(request: Request, status: dict[str, Any] = status) -> None:
                if isinstance(request.message, StatusRequest):
                    request.reply(StatusReply(status))
                else:
                    request.fail(ErrorCode.INTERNAL, LONG, {"leader": HOSTILE})

            server = await StreamTransport().serve(("tcp://127.0.0.1:0",), make_hello(role, f"{role}-1"), handle)
            client = client_of([address], hello=make_hello(role, f"{role}-1"))
            told = NodeRegisterRequest(f"{role}-1", role, server.addresses, LONG[:4000], 1)
            await client.register(told, deadline_s=10)
            servers.append(server)
            clients.append(client)
        front = client_of([address])
        for job in ("b", JOB):
            record = JobRecord("running", LAYOUT.layout().hash, RuleConfig("sgd"), 1, "coordinator-1")
            bucket = BucketRecord(1, "ps-1", ("ps-1",)).changed(1.0, LONG[:4000], learners=("ps-2",))
            puts = {bucket_key(job, one.index): encode(bucket) for one in LAYOUT.layout().buckets}
            await front.compare_and_set(
                ConfigChanges({}, {job_key(job): encode(record), layout_key(job): encode(LAYOUT), **puts})
            )
        try:
            yield address
        finally:
            for one in (*clients, front):
                await one.close()
            for server in servers:
                await server.close()


def of_the_right_types() -> dict[str, Any]:
    found: dict[str, Any] = {key: LONG for key in KEYS if key in ("state", "job", "error", "cut")}
    return found | {HOSTILE: HOSTILE, "jobs": {HOSTILE: {"state": HOSTILE}}, "messages": [LONG], "progress": 0.5}


async def shown(folder: Path, statuses: dict[str, dict[str, Any]], commands: Sequence[tuple[str, ...]]) -> None:
    async with liars(folder, statuses) as address:
        for command in commands:
            result = await asyncio.to_thread(adamctl, *command, "--controller", address, token="")
            clean(result)


async def test_no_text_of_a_member_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    roles = ("ps", "worker", "coordinator", "data", "greeter")
    await shown(tmp_path, {role: of_the_right_types() for role in roles}, COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_nor_any_value_in_its_place(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    statuses = {
        role: {key: any_value(random) for key in random.sample(KEYS, 12)}
        for role in ("ps", "worker", "coordinator", "data")
    }
    await shown(tmp_path, statuses, SLOW_COMMANDS)


async def test_a_name_that_is_none_is_refused_in_one_printable_line(tmp_path: Path) -> None:
    async with members_on(tmp_path, 1) as members:
        address = members["a"].peers["a"]
        client = client_of([address], hello=make_hello("ps", "ps-1"))
        with pytest.raises(RemoteError) as caught:
            await client.register(NodeRegisterRequest(HOSTILE, "ps", (), "h", 1), deadline_s=10)
        assert str(caught.value).isprintable() and caught.value.code == ErrorCode.NOT_ALLOWED
        await client.close()
