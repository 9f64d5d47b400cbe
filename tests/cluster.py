"""A cluster inside one event loop: a real controller and as many role contexts as a test wants, over memory.

    async with memory_cluster(seed=7) as cluster:
        ps = await cluster.start("ps", "ps-0", server.run, options={})      # runs a role's own coroutine function
        worker = await cluster.context("worker")                             # or drive a context by hand
        connection = await worker.connect("ps-0", deadline_s=5)
        cluster.network.crash("ps-0")

Everything is ended and closed when the block is left. Under `adamctl.net.testing.virtual_clock.run_virtual` time jumps;
elsewhere it is real.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.context import RoleContext
from adamctl.roles.controller import server as controller_server
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.controller.store import Store
from adamctl.roles.controller.testing.memory import VolatileStore
from tests.roles.controller.driven_core import OpenCore

ROOTS = (tempfile.gettempdir(),)
"""Where tests have checkpoints written."""
STOP_DEADLINE_S = 60.0


class ClusterInMemory:
    """What `memory_cluster` yields.

    Attributes:
        network: the in-memory network, for faults, partitions and crashes by node name.
        controller: the controller's own context; `controller_core` its state.
        client: a `ConfigurationStore` for the test itself, which may write any key.
        contexts: every context made so far, by node name.
    """

    def __init__(self, seed: int, config: ControllerConfig | None = None, network: MemoryNetwork | None = None) -> None:
        self.network = network or MemoryNetwork(Random(seed))
        self.config = config or ControllerConfig()
        self.contexts: dict[str, RoleContext] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, ControllerClient] = {}
        self._count = 0

    async def open(self, store: Store | None = None, identity: int = 1) -> None:
        """Starts the controller; `identity` is what makes a new one another cluster."""
        self.controller_core = OpenCore(self.config, identity=identity)
        self.controller = self._make("controller", "controller-0", {}, member=False)
        serving = controller_server.serve(self.controller, self.controller_core, store or VolatileStore())
        self.tasks["controller-0"] = asyncio.create_task(serving)
        while not self.controller.ready:
            if self.tasks["controller-0"].done():
                await self.tasks["controller-0"]
            await asyncio.sleep(0.001)
        self.client = self._client(self._make("front", "test-0", {}, member=False))

    async def context(
        self, role: str, node: str | None = None, options: Mapping[str, Any] | None = None
    ) -> RoleContext:
        """Returns the context of a new node; it becomes a member when `serve` is called on it."""
        self._count += 1
        context = self._make(role, node or f"{role}-{self._count}", options or {}, member=True)
        return context

    async def start(
        self,
        role: str,
        node: str | None,
        run: Callable[[RoleContext], Awaitable[None]],
        options: Mapping[str, Any] | None = None,
        *,
        ready_deadline_s: float = 60.0,
    ) -> RoleContext:
        """Runs a role's coroutine function in a task and returns its context once it serves."""
        context = await self.context(role, node, options)
        task = asyncio.ensure_future(run(context))
        self.tasks[context.node] = task  # type: ignore[assignment]
        async with asyncio.timeout(ready_deadline_s):
            while not context.ready:
                if task.done():
                    await task
                    raise AssertionError(f"{context.node} returned without having served")
                await asyncio.sleep(0.005)
        return context

    async def stop(self, node: str) -> None:
        """Ends a node in an orderly way and raises what its task raised."""
        context = self.contexts.pop(node)
        context.stop("the test stops it")
        task = self.tasks.pop(node, None)
        if task is not None:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await task
        await self._end(context)

    async def kill(self, node: str) -> None:
        """Ends a node as kill -9 does: no goodbye, no answer, connections broken."""
        context = self.contexts.pop(node)
        self.network.crash(node)
        if context._beacons is not None:
            context._beacons.cancel()
        task = self.tasks.pop(node, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        context.membership = None
        await self._end(context)

    async def close(self) -> None:
        """Stops everything, the controller last. Raises the first exception that a role's task ended with."""
        failures = []
        for node in [name for name in reversed(self.contexts) if name != "controller-0"] + ["controller-0"]:
            if node in self.contexts:
                try:
                    await self.stop(node)
                except Exception as error:
                    failures.append(error)
        for client in self._clients.values():
            await client.close()
        if failures:
            raise failures[0]

    async def _end(self, context: RoleContext) -> None:
        await context.close()
        client = self._clients.pop(context.node, None)
        if client is not None:
            await client.close()

    def _make(self, role: str, node: str, options: Mapping[str, Any], *, member: bool) -> RoleContext:
        context = RoleContext(
            role=role,
            node=node,
            options={"checkpoint_root": ROOTS, "data_root": ("/",), **options},
            transport=self.network,
            controller=None,
            stopping=asyncio.Event(),
            log=logging.getLogger(f"adamctl.{role}.{node}"),
            listen=(f"memory://{node}",),
        )
        if member:
            context.controller = context.membership = self._client(context)
        self.contexts[node] = context
        return context

    def _client(self, context: RoleContext) -> ControllerClient:
        client = ControllerClient(
            self.network, ["memory://controller-0"], context.hello, session=f"session-{context.node}-{self._count}"
        )
        self._clients[context.node] = client
        return client


@asynccontextmanager
async def memory_cluster(
    seed: int = 0,
    *,
    config: ControllerConfig | None = None,
    network: MemoryNetwork | None = None,
    store: Store | None = None,
) -> AsyncIterator[ClusterInMemory]:
    """Yields a cluster with a controller and nothing else; ends all of it afterwards."""
    cluster = ClusterInMemory(seed, config, network)
    await cluster.open(store)
    try:
        yield cluster
    finally:
        await cluster.close()
