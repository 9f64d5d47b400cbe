"""A parameter server that ends moves off what it holds first, as `adamctl drain` does, within a deadline.

`ps start --drain-on-term SECONDS` has SIGTERM begin it, and so does SHUTDOWN with `drain_s`, for whoever knows that a
machine goes away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from adamctl.config.records import DrainRecord, drain_key, encode
from adamctl.errors import RemoteError, RunFailedError, UnreachableError
from adamctl.model.layout import bucket_ranges
from adamctl.roles.configuration import read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.core.job_records import JOBS_PREFIX, JobKeys, JobView
from adamctl.roles.ps.jobs.keeper import JobKeeper
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigChanges

LOOK_EVERY_S = 0.05
NOTE_EVERY_S = 5.0


def still_held(views: Mapping[str, JobView], node: str) -> dict[str, dict[int, tuple[str, ...]]]:
    """Returns job -> bucket that names the server -> the other members in sync. Pure."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for name, view in views.items():
        held = {
            bucket: tuple(member for member in dict.fromkeys((record.primary, *record.in_sync)) if member != node)
            for bucket, record in view.buckets.items()
            if node in (record.primary, *record.in_sync, *record.learners)
        }
        if held:
            found[name] = held
    return found


def described(held: Mapping[str, Mapping[int, tuple[str, ...]]]) -> str:
    """Returns in words what a server still holds, and which of it no other server has; empty: nothing. Pure."""
    parts = []
    for name, buckets in held.items():
        alone = [bucket for bucket, others in buckets.items() if not others]
        copied = [bucket for bucket, others in buckets.items() if others]
        if alone:
            parts.append(f"job {name}: no other server has {bucket_ranges(alone)}")
        if copied:
            parts.append(f"job {name}: {bucket_ranges(copied)} of it, in sync on others too")
    return "; ".join(parts)


async def move_off(context: RoleContext, keeper: JobKeeper) -> None:
    """Has what is held moved to others before this process ends, if it was told to; says what could not be."""
    if not context.drain_s or context.failure is not None or keeper.replicating is None:
        return
    left = await drain_itself(context, keeper.views, keeper.replicating.others, context.drain_s)
    context.exit_code = 0
    if left:
        context.failure = RunFailedError(
            f"it leaves with what could not be moved in time ({left}); give it longer, or start another server first"
        )


async def drain_itself(
    context: RoleContext,
    views: Callable[[], Mapping[str, JobView]],
    others: Callable[[], frozenset[str]],
    deadline_s: float,
) -> str:
    """Has everything moved off this server; returns in words what could not be, "" if it holds nothing any more.

    Args:
        views: the running jobs, as the configuration service has them.
        others: live servers that may be given copies. If there are none, nothing is waited for.
        deadline_s: when to give up, from now.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    context.leaving = True
    held = still_held(views(), context.node) or await _held_now(context)
    if not held:
        return ""
    context.log.info("moving off what it holds, for at most %g s: %s", deadline_s, described(held))
    noted_s, asked = loop.time(), False
    while held and others() and loop.time() < until_s:
        asked = asked or await _asked(context)
        await asyncio.sleep(LOOK_EVERY_S)
        held = still_held(views(), context.node) or await _held_now(context)
        if held and loop.time() - noted_s >= NOTE_EVERY_S:
            noted_s = loop.time()
            context.log.info("still to be moved: %s", described(held))
    return described(held)


async def _held_now(context: RoleContext) -> dict[str, dict[int, tuple[str, ...]]]:
    """Returns like `still_held`, from a read: what is followed may lag behind a job that has just been made."""
    assert context.controller is not None
    try:
        _, entries = await context.controller.read(JOBS_PREFIX)
    except UnreachableError as error:
        context.log.warning("the controllers cannot be asked what it holds: %s", error)
        return {}
    keys = JobKeys()
    keys.take(Changes(0, tuple(entries), (), True))
    return still_held(keys.running(), context.node)


async def _asked(context: RoleContext) -> bool:
    """Notes in the configuration that this process is to hold nothing; returns whether that is known."""
    assert context.controller is not None
    key = drain_key(context.node)
    try:
        known = await read_record(context.controller, key, DrainRecord)
        if known is not None and known[0].incarnation == context.incarnation:
            return True
        record = DrainRecord(context.incarnation, time.time())
        conditions = {key: known[1] if known is not None else 0}
        reply = await context.controller.compare_and_set(ConfigChanges(conditions, {key: encode(record)}))
    except (UnreachableError, RemoteError) as error:
        context.log.warning("the controllers cannot be told that it leaves: %s", error)
        return False
    return not reply.conflicts
