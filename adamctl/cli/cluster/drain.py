"""`adamctl drain`: moves everything off a parameter server, so that it can be stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError, RunFailedError

WATCH_S = 2.0


@click.command("drain")
@click.argument("node", shell_complete=completing.nodes)
@click.option("--undo", is_flag=True, help="Let it hold buckets again.")
@click.option("--no-wait", is_flag=True, help="Return without waiting until it holds nothing.")
@options.controller_option
@options.token_option
def command(node: str, undo: bool, no_wait: bool, controller: tuple[str, ...], token: str) -> None:
    """Move everything off the parameter server NODE: make copies elsewhere, move its primaries, then drop its copies.

    Pushes and pulls continue meanwhile. No bucket that had two copies or more is left with fewer than two: if no other
    server can take a copy, the copy stays, and this command says so. NODE stays drained until its process ends.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    loop.run(_drain(addresses, token, node, undo, no_wait))


async def _drain(addresses: Sequence[str], token: str, node: str, undo: bool, no_wait: bool) -> None:
    import asyncio

    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.config.records import DrainRecord, NodeRecord, drain_key, encode, node_key
    from adamctl.roles.configuration import nodes, read_record
    from adamctl.wire.messages import ConfigChanges

    async with ClusterAccess(addresses, token) as cluster:
        store = cluster.store
        found = await read_record(store, node_key(node), NodeRecord)
        if found is None or found[0].role != "ps":
            what = "" if found is None else f", a {found[0].role}"
            living = sorted(record.node for record in await nodes(store, "ps"))
            raise ConfigurationError(
                f"NODE: expected the name of a live parameter server ({', '.join(living) or 'there are none'}); "
                f"found {node!r}{what}"
            )
        key = drain_key(node)
        known = await read_record(store, key, DrainRecord)
        revision = known[1] if known is not None else 0
        if undo:
            if known is not None:
                await store.compare_and_set(ConfigChanges({key: revision}, {}, (key,)))
            echo(f"{node} can hold buckets again")
            return
        record = DrainRecord(found[0].incarnation, time.time())
        if known is None or known[0].incarnation != record.incarnation:
            reply = await store.compare_and_set(ConfigChanges({key: revision}, {key: encode(record)}))
            if reply.conflicts:
                raise RunFailedError(f"{node}: another command has just started or ended draining it; try again")
        if no_wait:
            echo(f"{node} is being drained; adamctl shards --node {node} shows what it still holds")
            return
        try:
            await _wait(store, node)
        except asyncio.CancelledError:  # Ctrl-C
            echo(f"draining {node} continues; adamctl drain {node} --undo ends it", err=True)
            raise


async def _wait(store: Any, node: str) -> None:
    """Returns when no bucket names the server any more; prints every few seconds how many still do."""
    import asyncio

    from adamctl.cli.cluster.copies import holdings

    told, told_s = -1, 0.0
    while True:
        revision, entries = await store.read("/jobs/")
        _, nodes = await store.read("/nodes/")
        named = [one for one in holdings(entries, nodes) if node in (*one.record.in_sync, *one.record.learners)]
        if not named:
            echo(f"{node} holds nothing now; it can be stopped")
            return
        if not any(entry.key == f"/nodes/{node}" for entry in nodes):
            raise RunFailedError(f"{node} ended before everything was moved off it; see adamctl shards --check")
        if len(named) != told and time.monotonic() - told_s > WATCH_S:
            told, told_s = len(named), time.monotonic()
            echo(f"{node} still holds {told} buckets", err=True)
        changes = await store.watch("/jobs/", revision, WATCH_S)
        if not changes.entries:
            await asyncio.sleep(0.1)
