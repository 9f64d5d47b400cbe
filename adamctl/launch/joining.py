"""Checks that a cluster's controller answers before a run joins: until then, starts no role and makes no folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle

from adamctl.errors import ConfigurationError, ProtocolError, UnreachableError
from adamctl.net.address import is_loopback, parse_address
from adamctl.net.transport import Transport
from adamctl.roles.configuration import configuration_places
from adamctl.roles.controller.etcd.url import is_etcd
from adamctl.roles.process import outward_host
from adamctl.wire.messages import Hello

JOIN_DEADLINE_S = 5.0
"""Enough for a controller that has just been started; a role started alone waits longer, for one still to come."""
ATTEMPT_S = 2.0
PAUSE_S = 0.1
FIRST_NOTE_S = 2.0


def listening(join: Sequence[str], bind: str, advertise: str) -> tuple[str, ...]:
    """Returns the flags that say where the coordinator listens: where workers of the cluster that it joins reach it.

    Args:
        join: addresses of the controllers to join, or the URL of an etcd cluster; empty: everything is on this machine.
        bind: the host to listen on, if the user gave one; else this machine's address in the network towards the
            controllers, or loopback if they are on it.
        advertise: the host that workers are told, if the user gave one.

    Raises:
        ConfigurationError: a host is given, and no cluster to join.
    """
    if not join and (bind or advertise):
        flag, found = ("--bind", bind) if bind else ("--advertise", advertise)
        raise ConfigurationError(
            f"{flag}: found {found!a}, and nothing to join; give --join ADDR as well, or leave it out: "
            "all roles of a run without --join are on this machine"
        )
    hosts = [address.host for address in map(parse_address, configuration_places(join)) if address.scheme == "tcp"]
    if not bind and any(not is_loopback(host) for host in hosts):
        bind = outward_host(tuple(join))
    flags = (("--bind", bind), ("--advertise", advertise))
    return tuple(part for flag, host in flags if host for part in (flag, host))


async def find_controller(
    transport: Transport,
    addresses: Sequence[str],
    hello: Hello,
    note: Callable[[str], None],
    deadline_s: float = JOIN_DEADLINE_S,
    flag: str = "--join",
) -> None:
    """Returns as soon as one of the controllers answers; they are tried in turn.

    Args:
        addresses: addresses of the controllers to join, at least one; or the URL of an etcd cluster instead.
        hello: identity to connect with; its token must be the cluster's.
        note: called after 2 s with the addresses being waited for.
        flag: what gives the addresses, for the error.

    Raises:
        ConfigurationError: another role listens there.
        HandshakeError: the controller refuses us: wrong token or version.
        UnreachableError: none answered within `deadline_s` seconds.
    """
    if is_etcd(addresses[0]):
        await _find_etcd(transport, addresses, hello, deadline_s)
        return
    loop = asyncio.get_running_loop()
    where = ", ".join(addresses)
    noting = loop.call_later(FIRST_NOTE_S, note, f"waiting for the controller at {where}, for {FIRST_NOTE_S:g} s")
    until_s = loop.time() + deadline_s
    try:
        for address in cycle(addresses):
            try:
                await _greet(transport, address, hello, min(ATTEMPT_S, max(until_s - loop.time(), PAUSE_S)))
                return
            except ProtocolError:
                raise
            except UnreachableError as error:
                if loop.time() + PAUSE_S >= until_s:
                    raise UnreachableError(
                        f"the controller at {where} did not answer within {deadline_s:g} s ({error}); "
                        f"check that it is running and that {flag} gives its address"
                    ) from error
            await asyncio.sleep(PAUSE_S)
    finally:
        noting.cancel()


async def _find_etcd(transport: Transport, addresses: Sequence[str], hello: Hello, deadline_s: float) -> None:
    from adamctl.roles.controller.client import cluster_client  # slow to import; a run without --join does not need it

    store = cluster_client(transport, addresses, lambda: hello, deadline_s=deadline_s)
    try:
        await store.read("/nodes/")
    finally:
        await store.close()


async def _greet(transport: Transport, address: str, hello: Hello, deadline_s: float) -> None:
    connection = await transport.connect(address, hello, deadline_s=deadline_s, expects=("controller", ""))
    peer = connection.peer
    await connection.close()
    if peer.role != "controller":
        raise ConfigurationError(
            f"expected a controller at {address}, found {peer.role} {peer.node}; give --join the controller's address"
        )
