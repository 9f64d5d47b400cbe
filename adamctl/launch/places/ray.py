"""Hosts by Ray: one actor on each node, which owns a host agent.

Ray notices a killed actor at once, a killed node after some 14 s and a frozen one after a minute; leases are faster, so
what is said here only leads to replacements. Until Ray has noticed, the placement group of the begin counts a dead node
as there, so replacements get groups of their own, on nodes that no host of this run was lost on unnoticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from adamctl.config.names import as_name, printable
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError
from adamctl.importing import importing
from adamctl.launch.places.core.ray_nodes import check_address, cores_of_each, fitting, host_name, too_few
from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.places import AgentCommand, Draining, HostNeeds, Lost, Notice
from adamctl.launch.places.ray_calls import AUTO, HELLO_DEADLINE_S, POLL_S, RayCalls, first_line

BEGIN_DEADLINE_S = 60.0
PATIENCE_S = 2.0
"""Seconds after which a begin that waits says for what."""
ATTEMPT_S = 10.0
"""Seconds after which a replacement that found no node looks at the nodes again."""
STOP_GRACE_S = 5.0
END_DEADLINE_S = 15.0
DRAIN_S = 3600.0
"""Seconds in which a node that drains without a deadline is left."""


@dataclass(frozen=True)
class _Bundle:
    """A reserved part of a node; `alone` if its group has no other."""

    group: Any
    index: int
    alone: bool


@dataclass(frozen=True)
class _Host:
    name: str
    node: str
    actor: Any
    bundle: _Bundle


class RayPlaces:
    """An engine; see `Places`."""

    def __init__(self, options: EngineOptions, begin_deadline_s: float = BEGIN_DEADLINE_S) -> None:
        """Raises ConfigurationError: as `check_here`."""
        self._address = _address(options.environment)
        self._calls = RayCalls(_ray(), as_name(options.run))
        self._note = options.note
        self._begin_deadline_s = begin_deadline_s
        self._each = HostNeeds(1)
        self._agent = AgentCommand((), {})
        self._hosts: dict[str, _Host] = {}
        self._used: set[str] = set()
        self._free: list[_Bundle] = []
        self._failed: dict[str, float] = {}
        self._draining: set[str] = set()
        self._leaving: set[str] = set()
        self._notices: asyncio.Queue[Notice | None] = asyncio.Queue()
        self._tasks: set[asyncio.Future[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._over = False

    @staticmethod
    def check_here(environment: Mapping[str, str]) -> None:
        """See `Engine`: Ray is installed, and RAY_ADDRESS can be used."""
        _ray()
        _address(environment)

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """See `Places`."""
        self._each, self._agent = each, agent
        await self._calls.connect(self._address)
        if not each.cores:
            self._each = replace(each, cores=cores_of_each(await self._calls.nodes(), hosts))
        group = await self._calls.group([self._resources()] * hosts, "STRICT_SPREAD", set())
        await self._until_placed(group, hosts)
        bundles = [_Bundle(group, index, hosts == 1) for index in range(hosts)]
        actors = [self._calls.actor(group, bundle.index, self._each.cores) for bundle in bundles]
        met = await asyncio.gather(*map(self._calls.meet, actors))
        for actor, bundle, (node, hostname) in zip(actors, bundles, met, strict=True):
            await self._start(actor, bundle, node, hostname)
        self._follow(self._watch_draining())

    async def one_more(self, why: str) -> bool:
        """See `Places`: waits in the background for a node, which an autoscaler may have to start."""
        if self._over or not self._calls.connected:
            return False
        self._follow(self._one_more(printable(why)))
        return True

    async def notices(self) -> AsyncIterator[Notice]:
        """See `Places`."""
        while (notice := await self._notices.get()) is not None:
            yield notice

    async def end(self) -> None:
        """See `Places`: ends agents and actors, gives nodes back, and leaves Ray."""
        if self._over:
            return
        self._over = True
        self._notices.put_nowait(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._calls.connected:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(END_DEADLINE_S):
                stopping = (self._calls.answer(host.actor.stop.remote(STOP_GRACE_S)) for host in self._hosts.values())
                await asyncio.gather(*stopping, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_DEADLINE_S):
                await self._calls.leave()

    # --- the begin --------------------------------------------------------------------------------------------------

    def _resources(self) -> dict[str, float]:
        memory = {"memory": float(self._each.memory_bytes)} if self._each.memory_bytes else {}
        return {"CPU": float(self._each.cores), **memory}

    async def _until_placed(self, group: Any, hosts: int) -> None:
        """Returns when Ray has found the nodes; after `PATIENCE_S` says what it looks for.

        Raises:
            UnreachableError: it has not by the deadline: Ray would wait for ever.
        """
        until_s = time.monotonic() + self._begin_deadline_s
        said = False
        while not await self._calls.placed(group, min(PATIENCE_S, self._begin_deadline_s)):
            problem = too_few(hosts, self._each.cores, await self._calls.nodes())
            if time.monotonic() >= until_s:
                raise UnreachableError(f"{problem}; waited {self._begin_deadline_s:.0f} s: ask for fewer with --hosts")
            if not said:
                self._note(f"waiting for Ray: {problem}")
            said = True

    async def _start(self, actor: Any, bundle: _Bundle, node: str, hostname: str) -> None:
        name = host_name(hostname, self._used)
        self._used.add(name)
        host = self._hosts[name] = _Host(name, node, actor, bundle)
        arguments = (*self._agent.line[1:], "--name", name)
        await self._calls.answer(actor.start.remote(arguments, dict(self._agent.environment)))
        self._follow(self._watch(host))

    # --- what becomes of hosts --------------------------------------------------------------------------------------

    async def _watch(self, host: _Host) -> None:
        """Says when a host's agent or its actor has ended."""
        try:
            status, tail = await self._calls.end_of(host.actor)
            why = f"its agent ended with status {status}"
            if tail.strip():
                why += f": {printable(tail.strip().splitlines()[-1])}"
        except self._calls.errors as error:
            taken = " (the node was taken away)" if getattr(error, "preempted", False) else ""
            why = f"Ray: {first_line(error)}{taken}"
        del self._hosts[host.name]
        self._notices.put_nowait(Lost(host.name, why))
        await self._give_back(host.bundle, host.actor)

    async def _give_back(self, bundle: _Bundle, actor: Any) -> None:
        """Gives a bundle back, or, as one of a group cannot be given back alone, keeps it for another host."""
        if bundle.alone:
            await self._calls.remove(bundle.group)
        else:
            await self._calls.kill(actor)
            self._free.append(bundle)

    async def _watch_draining(self) -> None:
        """Says which hosts are on nodes that Ray will take away: preempted, or scaled down."""
        while True:
            with suppress(self._calls.errors):
                deadlines_ms = await self._calls.draining()
                self._leaving = set(deadlines_ms)
                for host in list(self._hosts.values()):
                    if host.node in deadlines_ms and host.name not in self._draining:
                        self._draining.add(host.name)
                        deadline_ms = deadlines_ms[host.node]
                        left_s = max(deadline_ms / 1000 - time.time(), 0.0) if deadline_ms else DRAIN_S
                        self._notices.put_nowait(Draining(host.name, left_s, "Ray takes its node away"))
            await asyncio.sleep(POLL_S)

    # --- one more host ----------------------------------------------------------------------------------------------

    async def _one_more(self, why: str) -> None:
        """Finds a node for one more host, however long that takes; one after another, so that none takes another's."""
        async with self._one_at_a_time:
            said = False
            while not await self._tried():
                if not said:
                    there = len(fitting(await self._calls.nodes(), self._each.cores))
                    self._note(
                        f"waiting for a node of Ray with {self._each.cores} free cores ({why}); nodes with so many, "
                        f"free or not: {there}"
                    )
                said = True

    async def _tried(self) -> bool:
        """As `_try`; whatever goes wrong with Ray is said, and tried again later."""
        try:
            return await self._try()
        except Exception as error:  # what Ray raises is of no one kind
            self._note(f"Ray: {first_line(error)}")
            await asyncio.sleep(ATTEMPT_S)
            return False

    async def _try(self) -> bool:
        """Tries once to place a host: in a bundle that is free again, else in a new group on another node."""
        since_s = time.monotonic() - HELLO_DEADLINE_S
        failed = {node for node, failed_s in self._failed.items() if failed_s > since_s}  # Ray may yet find them dead
        taken = {host.node for host in self._hosts.values()} | failed | self._leaving
        for bundle in list(self._free):
            node = await self._calls.node_of(bundle.group, bundle.index)
            if node and node not in taken:
                self._free.remove(bundle)
                return await self._place(bundle, taken, node)
        group = await self._calls.group([self._resources()], "PACK", taken)
        if not await self._calls.placed(group, ATTEMPT_S):
            await self._calls.remove(group)
            return False
        return await self._place(_Bundle(group, 0, True), taken)

    async def _place(self, bundle: _Bundle, taken: set[str], node: str = "") -> bool:
        """Starts an agent in a bundle; returns whether its actor answered from a node that is none of `taken`."""
        actor = self._calls.actor(bundle.group, bundle.index, self._each.cores)
        try:
            node, hostname = await self._calls.meet(actor)
        except AdamctlError as error:
            self._note(f"no host on a node of Ray: {error}")
            hostname = ""
        if hostname and node not in taken:
            await self._start(actor, bundle, node, hostname)
            return True
        if node:
            self._failed[node] = time.monotonic()
        await self._give_back(bundle, actor)
        await asyncio.sleep(POLL_S)
        return False

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note(f"Ray: {first_line(error)}")


def _ray() -> Any:
    """Returns the package. Raises ConfigurationError: it is not installed."""
    try:
        with importing():
            import ray
    except ImportError as error:
        raise ConfigurationError(
            f"--on ray needs Ray here and on every node: pip install 'adamctl[ray]' (240 MB): {error}"
        ) from error
    return ray


def _address(environment: Mapping[str, str]) -> str:
    """Returns where a cluster of Ray is. Raises ConfigurationError: RAY_ADDRESS cannot be used."""
    address = environment.get("RAY_ADDRESS", "") or AUTO
    check_address(address)
    return address
