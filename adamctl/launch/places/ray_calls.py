"""What a front asks of Ray. Ray's calls block, so they run in threads; each is bounded in time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from adamctl import __version__
from adamctl.config.names import printable
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.places.core.ray_nodes import RayNode, living, without

CONNECT_DEADLINE_S = 10.0
HELLO_DEADLINE_S = 60.0
"""Seconds that an actor may take to answer: Ray starts a worker for it, which imports this package."""
CONCURRENT_CALLS = 4
"""One call waits for an agent's end, others start and stop it."""
POLL_S = 1.0
AUTO = "auto"


class RayCalls:
    """The connection of one run to a cluster of Ray.

    Attributes:
        connected: whether `connect` has succeeded.
    """

    def __init__(self, ray: Any, run: str) -> None:
        """`ray` is the package; `run` names the groups of the run."""
        self._ray = ray
        self._run = run
        self._groups: list[Any] = []
        self._numbers = count(1)
        self.connected = False

    @property
    def errors(self) -> type[Exception]:
        """What calls raise."""
        error: type[Exception] = self._ray.exceptions.RayError
        return error

    async def connect(self, address: str) -> None:
        """Raises UnreachableError: no cluster is there. ConfigurationError: it cannot be used from this machine."""
        advice = "run this on a node of it, or submit what adamctl launch ray EXP.toml --print prints"
        try:
            await asyncio.to_thread(self._connect, address)
        except ConnectionError as error:
            raise UnreachableError(
                f"no cluster of Ray answers at {address}: {first_line(error)}; start it with ray start --head, {advice}"
            ) from error
        except (RuntimeError, ValueError, OSError) as error:
            raise ConfigurationError(f"cannot use Ray at {address} from here: {first_line(error)}; {advice}") from error
        self.connected = True

    def _connect(self, address: str) -> None:
        if address != AUTO:  # Ray would try for minutes
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_DEADLINE_S).close()
            except ValueError as error:
                raise ConfigurationError(f"RAY_ADDRESS: expected HOST:PORT; found {printable(address)}") from error
            except OSError as error:
                raise ConnectionError(str(error)) from error
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._ray.init(
            address=address,
            namespace=f"adamctl-{self._run}",
            configure_logging=False,
            log_to_driver=False,
            logging_level="ERROR",
        )

    async def nodes(self) -> list[RayNode]:
        """Returns the nodes that Ray believes alive."""
        return living(await asyncio.to_thread(self._ray.nodes))

    async def draining(self) -> dict[str, int]:
        """Returns node -> deadline in milliseconds since 1970, 0 without one, of nodes that will be taken away."""
        ask: Callable[[], dict[str, int]] | None
        ask = getattr(self._ray._private.state.state, "get_draining_nodes", None)
        return {} if ask is None else await asyncio.to_thread(ask)

    # --- groups -----------------------------------------------------------------------------------------------------

    async def group(self, bundles: list[dict[str, float]], strategy: str, leave_out: set[str]) -> Any:
        """Asks for a group of bundles, on other nodes than these as far as this version of Ray can see to it."""
        from ray.util.placement_group import placement_group

        selector = without(leave_out)
        options: dict[str, Any] = {"strategy": strategy, "name": f"adamctl-{self._run}-{next(self._numbers)}"}
        if selector and "bundle_label_selector" in placement_group.__code__.co_varnames:
            options["bundle_label_selector"] = [selector] * len(bundles)
        group = await asyncio.to_thread(placement_group, bundles, **options)
        self._groups.append(group)
        return group

    async def placed(self, group: Any, wait_s: float) -> bool:
        """Returns whether nodes were found for a group within this time."""
        return bool(await asyncio.to_thread(group.wait, wait_s))

    async def node_of(self, group: Any, index: int) -> str:
        """Returns the living node that holds a bundle; empty while Ray looks for one."""
        from ray.util.placement_group import placement_group_table

        row = await asyncio.to_thread(placement_group_table, group)
        node = str((row.get("bundles_to_node_id") or {}).get(index, ""))
        return node if node in {one.node for one in await self.nodes()} else ""

    async def remove(self, group: Any) -> None:
        """Gives a group back; Ray kills the actors in it."""
        await asyncio.to_thread(self._remove, group)

    def _remove(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.remove(group)
        with suppress(self.errors):
            remove_placement_group(group)

    # --- actors -----------------------------------------------------------------------------------------------------

    def actor(self, group: Any, index: int, cores: int) -> Any:
        """Returns an actor in a bundle; it is started when something is asked of it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from adamctl.launch.places.ray_agent import Agent

        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        made = self._ray.remote(Agent).options(
            num_cpus=cores, max_restarts=0, max_concurrency=CONCURRENT_CALLS, scheduling_strategy=strategy
        )
        return made.remote()

    async def meet(self, actor: Any) -> tuple[str, str]:
        """Returns an actor's node and the name of its machine.

        Raises:
            ConfigurationError: the node has another version of adamctl, or none.
            UnreachableError: the actor does not answer.
        """
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                version, hostname, node = await self.answer(actor.here.remote())
        except TimeoutError:
            raise UnreachableError(f"an actor of Ray did not answer within {HELLO_DEADLINE_S:.0f} s") from None
        except self.errors as error:
            if "No module named" in str(error):
                missing = str(error).partition("No module named")[2].split()[0].strip("'\".")
                raise ConfigurationError(
                    f"a node of Ray has no {printable(missing)} for its Python: install adamctl {__version__} on every "
                    "node"
                ) from error
            raise UnreachableError(f"an actor of Ray does not start: {first_line(error)}") from error
        if version != __version__:
            raise ConfigurationError(
                f"host {printable(hostname)} has adamctl {printable(version)}, expected {__version__} as here: install "
                "the same on every node"
            )
        return node, hostname

    async def end_of(self, actor: Any) -> tuple[int, str]:
        """Waits for the end of an actor's agent, also over connections that break; returns status and last output."""
        while True:
            try:
                status, tail = await self.answer(actor.ended.remote())
                return status, tail
            except self._ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(POLL_S)

    async def answer(self, reference: Any) -> Any:
        """Returns what a call of an actor returns."""
        return await asyncio.wrap_future(reference.future())

    async def kill(self, actor: Any) -> None:
        """Ends an actor's process at once."""
        with suppress(self.errors):
            await asyncio.to_thread(self._ray.kill, actor)

    async def leave(self) -> None:
        """Gives all groups back and disconnects."""

        def leave() -> None:
            for group in list(self._groups):
                self._remove(group)
            self._ray.shutdown()

        await asyncio.to_thread(leave)


def first_line(error: BaseException) -> str:
    """Returns what an error says first: those of Ray go on with tracebacks of other processes."""
    lines = str(error).strip().splitlines()
    return printable(lines[0]) if lines else type(error).__name__
