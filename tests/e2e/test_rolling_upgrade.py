"""A cluster is upgraded node by node while it trains and while clients push, in the order of docs/upgrades.md.

Every push of the clients adds 1 to every parameter, so each value is the number of pushes that it contains. Nothing
that was acknowledged is lost, nothing is applied twice, and no epoch of a bucket goes back. The version before is the
code of an earlier commit, in processes of their own.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from adamctl.bench.failover.cluster import wait_whole
from adamctl.cli.cluster.versions import version_of
from adamctl.config.records import BucketRecord, decode
from adamctl.errors import UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import ControllerClient
from tests.e2e.conftest import EXAMPLES, ROOT, Command, Runner
from tests.faults.servers_under_fire import JOB, Fire
from tests.faults.tended_servers import COPIES, STARVED_S, WHOLE_S
from tests.ports import free_ports

BEFORE = "e154ed90"
"""The version before this one, until there is a release: main as it was before many machines."""
TRAINED_JOB = "digits"
CONTROLLERS = ("c-1", "c-2", "c-3")
SERVERS = ("ps-1", "ps-2", "ps-3")
WORKERS = ("worker-1", "worker-2")
TOP1_MIN = 0.9
LOOK_S = 0.05
LEASE_S = 16.0
"""So long that no node of a crowded machine is taken for lost; a node that is stopped takes its leave."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the version before."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, timeout=60)
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not have {BEFORE}: {archive.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder, filter="tar")
    return folder


class Cluster:
    """Processes of two versions, all started by hand; what `Fire` needs of a cluster."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._ports = dict(zip(CONTROLLERS, free_ports(len(CONTROLLERS)), strict=True))
        self.addresses = [f"tcp://127.0.0.1:{port}" for port in self._ports.values()]
        self._processes: dict[str, Command] = {}
        self.resumed = 0

    def connect(self) -> ControllerClient:
        return ControllerClient(StreamTransport(), self.addresses, lambda: make_hello("operator", "upgrade"))

    def start(self, node: str, code: Path) -> None:
        """Starts a node with the code of a tree."""
        self._processes[node] = self.runner.start(
            *self._arguments(node), "--name", node, "--log-level", "warning",
            PYTHONPATH=str(code), ADAMCTL_CONTROLLER=",".join(self.addresses),
        )  # fmt: skip

    def _arguments(self, node: str) -> list[str]:
        role = {"c": "controller"}.get(node.partition("-")[0], node.partition("-")[0])
        folder = str(self.runner.folder / node)
        match role:
            case "controller":
                peers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in self._ports.items())
                limits = ("--lease", str(LEASE_S))
                return [role, "start", "--dir", folder, "--peers", peers, "--port", str(self._ports[node]), *limits]
            case "ps":
                return [role, "start", "--store", folder, "--apply-threads", "1"]
            case "worker":
                return [role, "start", "--threads", "1"]
            case "coordinator":
                settings = (
                    f"cluster.ps={COPIES}", f"cluster.replication={COPIES}", "cluster.workers=2", "train.passes=100000",
                    "train.evaluate_every=5", "train.checkpoint_every=10", "optimizer.schedule.type=constant",
                )  # fmt: skip
                resume = [] if not self.resumed else ["--resume", str(self.runner.folder / f"run-{self.resumed}")]
                return [
                    role, "start", "--experiment", str(EXAMPLES / "digits.toml"),
                    "--job", f"{TRAINED_JOB}{self.resumed}",
                    "--run-dir", str(self.runner.folder / f"run-{self.resumed + 1}"), *resume,
                    *(part for setting in settings for part in ("--set", setting)),
                ]  # fmt: skip
            case _:
                return [role, "start"]

    async def stop(self, node: str) -> None:
        """Ends a node as an operator does, with SIGTERM."""
        command = self._processes.pop(node)
        command.process.terminate()
        found, _, stderr = await asyncio.to_thread(command.wait, WHOLE_S)
        assert found in (0, 128 + signal.SIGTERM), f"{node}: {found}\n{stderr}"

    async def status(self) -> dict[str, Any]:
        """Returns what `adamctl status --json` of this version prints."""
        addresses = ",".join(self.addresses)
        code, stdout, stderr = await asyncio.to_thread(
            self.runner.run, "status", "--json", PYTHONPATH=str(ROOT), ADAMCTL_CONTROLLER=addresses
        )
        assert code in (0, 3), stderr
        found: dict[str, Any] = json.loads(stdout)
        return found

    async def wait(self, what: str, condition: Any) -> Any:
        """Returns what a condition of the status returns, once it is true."""
        async with asyncio.timeout(STARVED_S):
            while True:
                for node, command in self._processes.items():
                    if command.process.poll() is not None:
                        pytest.fail(f"{node} has ended while waiting for {what}: {command.process.communicate()[1]}")
                if found := condition(await self.status()):
                    return found
                await asyncio.sleep(LOOK_S)

    async def there(self, *nodes: str) -> None:
        """Waits until nodes are members and answer."""
        await self.wait(
            f"members {nodes}",
            lambda status: set(nodes) <= {one["node"] for one in status.get("nodes", ()) if one["answers"]},
        )

    async def agreed(self) -> None:
        """Waits until all controllers follow the leader and none is behind."""

        def all_follow(status: dict[str, Any]) -> bool:
            members = status.get("controller", {}).get("members", [])
            return len(members) == len(CONTROLLERS) and all(
                member.get("lag") is not None and member["lag"] <= 1 and (member.get("silent_s") or 0.0) < 2.0
                for member in members
            )  # fmt: skip

        await self.wait("all controllers", all_follow)

    def metrics(self) -> list[dict[str, Any]]:
        """Returns what the present run has written."""
        file = self.runner.folder / f"run-{self.resumed + 1}" / "metrics.jsonl"
        return (
            [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []
        )

    async def trains(self) -> None:
        """Waits until the run has trained on more examples than by now."""

        def examples() -> int:
            return max((line.get("examples", 0) for line in self.metrics()), default=0)

        since = examples()
        async with asyncio.timeout(STARVED_S):
            while examples() <= since:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def watched(cluster: Cluster) -> AsyncIterator[None]:
    """While inside, no epoch of any bucket and no revision of the configuration goes back."""
    store, epochs, latest = cluster.connect(), {}, 0

    async def watch() -> None:
        nonlocal latest
        while True:
            with suppress(UnreachableError):
                revision, entries = await store.read("/jobs/")
                assert revision >= latest, f"the configuration went back from {latest} to {revision}"
                latest = revision
                for entry in (one for one in entries if "/buckets/" in one.key):
                    epoch = decode(entry.value, BucketRecord).epoch
                    assert epoch >= epochs.get(entry.key, 0), f"{entry.key} went back to epoch {epoch}"
                    epochs[entry.key] = epoch
            await asyncio.sleep(LOOK_S)

    watching = asyncio.create_task(watch())
    try:
        yield
        assert epochs and max(epochs.values()) > 1, "buckets have changed hands"
        if watching.done():
            watching.result()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await store.close()


def versions(status: dict[str, Any]) -> dict[str, bool]:
    """Returns node -> whether it tells its version, as it does since this version."""
    nodes = {node["node"]: node["status"] for node in status["nodes"] if node["addresses"]}
    controllers = {one["name"]: one for one in status["controllers"]}
    return {name: version_of(of_it) is not None for name, of_it in (nodes | controllers).items()}


async def start_all(cluster: Cluster, code: Path) -> None:
    for node in CONTROLLERS:
        cluster.start(node, code)
    await cluster.agreed()
    for node in (*SERVERS, "data-1", *WORKERS):
        cluster.start(node, code)
    await cluster.there(*SERVERS, "data-1", *WORKERS)
    cluster.start("coordinator-1", code)
    await cluster.trains()


async def replace_all(cluster: Cluster, fire: Fire, code: Path) -> None:
    """In the order of docs/upgrades.md: controllers, parameter servers, data servers, coordinator, workers."""
    for node in CONTROLLERS:
        await cluster.stop(node)
        cluster.start(node, code)
        await cluster.agreed()
        await fire.progress(5)
        await cluster.trains()
    await fire.check()
    for node in SERVERS:
        await cluster.stop(node)
        await fire.progress(5)
        cluster.start(node, code)
        await cluster.there(node)
        for job in (JOB, f"{TRAINED_JOB}{cluster.resumed}"):
            await wait_whole(fire.store, job, COPIES, WHOLE_S)
        await fire.check()
        await cluster.trains()
    cluster.start("data-2", code)
    await cluster.there("data-2")
    await cluster.stop("data-1")
    await cluster.trains()
    await cluster.stop("coordinator-1")
    cluster.resumed += 1
    cluster.start("coordinator-1", code)
    await cluster.trains()
    for node in WORKERS:
        await cluster.stop(node)
        cluster.start(node, code)
        await cluster.there(node)
        await cluster.trains()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to this version", "back to the one before"])
async def test_node_by_node_under_load(adamctl: Runner, before: Path, direction: str) -> None:
    first, then = (before, ROOT) if direction == "to this version" else (ROOT, before)
    cluster = Cluster(adamctl)
    await start_all(cluster, first)
    assert set(versions(await cluster.status()).values()) == {first == ROOT}
    fire = Fire(cluster, clients=2)  # type: ignore[arg-type]
    try:
        await fire.open()
        await fire.progress(5)
        async with watched(cluster):
            await replace_all(cluster, fire, then)
            assert set(versions(await cluster.status()).values()) == {then == ROOT}
            await fire.check()
            fire.check_clients()
    finally:
        await fire.close()
    passes = [line for line in cluster.metrics() if line["kind"] == "evaluation"]
    assert passes and passes[-1]["top1"] >= TOP1_MIN, passes[-3:]
