"""`adamctl recover`: restores buckets that lost all copies from what is left, when some servers never come back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.output import EXIT_DEGRADED, echo, print_json, table
from adamctl.errors import DeadlineError, RunFailedError, UnreachableError

if TYPE_CHECKING:
    from adamctl.cli.cluster.state import ClusterReader
    from adamctl.roles.ps.replication.core.recovery import Finding, Kept

LOOK_EVERY_S = 0.2
SPEAK_AFTER_S = 2.0
CERTAIN_S = 12.0
"""Seconds that live servers get to report what they have: a server reads its store after its lease has passed."""
SERVED_S = 60.0
COLUMNS = ("bucket", "epoch", "missing", "has nothing", "recovered on", "up to", "copies also on")


@click.command("recover")
@click.argument("job")
@click.option("--bucket", "buckets", type=int, multiple=True, metavar="N", help="Only this bucket; repeatable.")
@click.option("--from", "chosen", default="", metavar="NODE", help="Also use NODE's copy, which is no longer in sync.")
@click.option("--yes", is_flag=True, help="Recover. Without this flag, only show what would be done.")
@options.controller_option
@options.token_option
@options.json_option
def command(
    job: str,
    buckets: tuple[int, ...],
    chosen: str,
    yes: bool,
    controller: tuple[str, ...],
    token: str,
    as_json: bool,
) -> int:
    """Recover JOB's stuck buckets from the copies that are left, and give up the servers that are missing.

    When all copies of a bucket are lost at once, its servers restore it from their stores as soon as all of those in
    sync are back. Use this command when one never comes back: what only that server had is lost for good. If it can be
    started again with its store, do that instead.

    A server that was once in sync keeps its copy on disk as long as copies are missing. That copy is older and is used
    only if --from names the server.
    """
    addresses = options.addresses(controller)
    from adamctl.net import loop

    return loop.run(_recover(addresses, token, job, buckets, chosen, yes, as_json))


async def _recover(
    addresses: Sequence[str], token: str, job: str, buckets: Sequence[int], chosen: str, yes: bool, as_json: bool
) -> int:
    from adamctl.cli.cluster.state import ClusterReader
    from adamctl.roles.ps.replication.core.recovery import State

    async with ClusterReader(addresses, token) as reader:
        found = await _certain(reader, job, buckets, chosen)
        stuck = [one for one in found if one.state is State.STUCK]
        nobody = [one for one in found if one.state is State.NOBODY]
        doubtful = [one for one in found if one.state is State.UNCERTAIN]
        if yes and stuck and not nobody:
            if not as_json:
                echo(described(found))
            await _do(reader, job, stuck)
        if as_json:
            done = {one.bucket for one in stuck} if yes and not nobody else set()
            print_json({"job": job, "buckets": [_values(one, one.bucket in done) for one in found]})
        elif not yes or not stuck or nobody:
            echo(described(found))
        if nobody:
            raise RunFailedError(lost_text(job, nobody))
        if stuck and not as_json:
            text = f"{_numbers(stuck)}: served again" if yes else "nothing was changed; run again with --yes to do this"
            echo(text)
        if doubtful and not stuck:
            raise UnreachableError(f"{_numbers(doubtful)}: state not known yet: {doubtful[0].why}; try again")
        return EXIT_DEGRADED if doubtful or (stuck and not yes) else 0


async def _certain(reader: ClusterReader, job: str, buckets: Sequence[int], chosen: str) -> list[Finding]:
    """Returns what is found once every live server has reported what it has, or its time to report is over."""
    import asyncio

    from adamctl.cli.cluster.stuck import look
    from adamctl.roles.ps.replication.core.recovery import State

    began_s, spoken = time.monotonic(), False
    while True:
        found = await look(reader, job, buckets, chosen)
        doubtful = [one for one in found if one.state is State.UNCERTAIN]
        waited_s = time.monotonic() - began_s
        if not doubtful or waited_s >= CERTAIN_S:
            return found
        if waited_s >= SPEAK_AFTER_S and not spoken:
            spoken = True
            echo(f"waiting for {waited_s:.0f} s: {_numbers(doubtful)}: {doubtful[0].why}", err=True)
        await asyncio.sleep(LOOK_EVERY_S)


async def _do(reader: ClusterReader, job: str, stuck: Sequence[Finding]) -> None:
    """Recovers buckets and returns when they are served.

    Raises:
        RunFailedError: something changed meanwhile, so what was shown no longer applies.
        DeadlineError: they were not served in time.
    """
    import asyncio

    from adamctl.cli.cluster.stuck import look
    from adamctl.roles.ps.replication.core.recovery import State, recovery

    for changes in recovery(job, stuck, time.time()):
        reply = await reader.store.compare_and_set(changes)
        if reply.conflicts:
            where = ", ".join(key.rpartition("/")[2] if "/nodes/" in key else key for key in reply.conflicts)
            raise RunFailedError(
                f"not all buckets were recovered: {where} changed meanwhile; check again: adamctl recover {job}"
            )
    began_s, spoken = time.monotonic(), False
    while True:
        found = await look(reader, job, [one.bucket for one in stuck])
        waiting = [one for one in found if one.state is not State.HELD]
        waited_s = time.monotonic() - began_s
        if not waiting:
            return
        what = f"{_numbers(waiting)}, to be served by {', '.join(sorted({o.known.record.primary for o in waiting}))}"
        if waited_s >= SERVED_S:
            raise DeadlineError(f"job {job!r}: not yet served after {SERVED_S:g} s: {what}; see adamctl shards")
        if waited_s >= SPEAK_AFTER_S and not spoken:
            spoken = True
            echo(f"waiting for {waited_s:.0f} s: {what}", err=True)
        await asyncio.sleep(LOOK_EVERY_S)


# --- texts for people -----------------------------------------------------------------------------------------------


def described(found: Sequence[Finding]) -> str:
    """Returns the text that is shown before anything is done."""
    from adamctl.roles.ps.replication.core.recovery import State

    told = [one for one in found if one.state in (State.STUCK, State.NOBODY, State.UNCERTAIN)]
    parts = []
    if told:
        parts.append(table(COLUMNS, [_row(one) for one in told], right=(0, 1)))
    returning = [one for one in found if one.state is State.RETURNING]
    if returning:
        parts.append(f"{_numbers(returning)}: {returning[0].why}")
    stuck = [one for one in told if one.state is State.STUCK]
    if stuck:
        missing = ", ".join(sorted({node for one in stuck for node in one.missing}))
        parts.append(
            "Updates acknowledged after those states are lost, unless the job's acks are durable. Clients are told."
            f"\nIf {missing} can still be started with its store, start it instead: then nothing is given up."
        )
    parts += _former(told)
    return "\n\n".join(parts) or "nothing is stuck: every bucket is served or is being taken over"


def _former(told: Sequence[Finding]) -> list[str]:
    """Returns what servers that are no longer in sync have."""
    lines = [
        f"{node}, no longer in sync, has bucket {one.bucket} on disk up to {_state(kept)}"
        for one in told
        for node, kept in one.former
        if node not in dict(one.holders)
    ]
    return ["\n".join([*lines, "With --from NODE that copy is used, too, though it is not in sync."])] if lines else []


def _row(one: Finding) -> tuple[str, ...]:
    from adamctl.roles.ps.replication.core.recovery import State

    kept = dict(one.holders).get(one.primary)
    others = " ".join(node for node, _ in one.holders if node != one.primary)
    if one.state is not State.STUCK or kept is None:
        ends = ("no server has it", "-", "-") if one.state is State.NOBODY else ("?", one.why, "-")
    else:
        ends = (one.primary, _state(kept), others or "-")
    return (
        str(one.bucket),
        str(one.known.record.epoch),
        " ".join(one.missing) or "-",
        " ".join(one.empty) or "-",
        *ends,
    )


def _state(kept: Kept) -> str:
    """Returns the state of a bucket in a store: versions of its shards, and the total number of their updates."""
    (first, oldest), (last, newest) = kept.oldest, kept.newest
    if first != last:
        where = f"epochs {first} to {last}, versions up to {newest}"
    else:
        where = f"epoch {last}, version{f's {oldest} to' if oldest != newest else ''} {newest}"
    return f"{where} ({kept.pushes} updates of {kept.shards} shard{'s' * (kept.shards > 1)})"


def lost_text(job: str, nobody: Sequence[Finding]) -> str:
    """Returns what to do when nothing is left of some buckets."""
    missing = sorted({node for one in nobody for node in one.missing})
    text = f"{_numbers(nobody)} of job {job!r}: no live server has any of it, in memory or in a store"
    start = f"start {', '.join(missing)} again with their stores, or " if missing else ""
    former = sorted({node for one in nobody for node, _ in one.former})
    older = f"continue with the older copy of {' or '.join(former)}: --from {former[0]}, or " if former else ""
    others = "nothing was changed (--bucket recovers others by themselves)"
    return f"{text} ({nobody[0].why}); {start}{older}resume the run from its last checkpoint; {others}"


def _numbers(found: Sequence[Finding]) -> str:
    from adamctl.model.layout import bucket_ranges

    return bucket_ranges(one.bucket for one in found)


def _values(one: Finding, done: bool) -> dict[str, Any]:
    """Plain values, for programs."""
    return {
        "bucket": one.bucket,
        "epoch": one.known.record.epoch,
        "state": one.state.value,
        "why": one.why,
        "missing": list(one.missing),
        "empty": list(one.empty),
        "given_up": list(one.given_up),
        "primary": one.primary,
        "in_sync": [node for node, _ in one.holders],
        "stored": {node: _stored(kept) for node, kept in one.holders},
        "former": {node: _stored(kept) for node, kept in one.former},
        "recovered": done,
    }


def _stored(kept: Kept) -> dict[str, Any]:
    return {
        "shards": kept.shards,
        "oldest": list(kept.oldest),
        "newest": list(kept.newest),
        "pushes": kept.pushes,
    }
