"""The configuration service as every role sees it, whatever provides it: its interface, common operations, and where to
find it.

Keys and their values are listed in `adamctl.config.records`. All calls are made on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

import msgspec

from adamctl.config.records import NodeRecord
from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.net.address import parse_address
from adamctl.roles.controller.etcd.url import is_etcd, parse_etcd_url
from adamctl.wire.changes import Changes
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigEntry,
    NodeRegisterReply,
    NodeRegisterRequest,
)
from adamctl.wire.unreadable import UNREADABLE

SILENCE_S = 2.0
"""A wait longer than this is logged: for what, and since when."""
SILENCE_REPEAT_S = 10.0
WATCH_S = 20.0
FOLLOW_AGAIN_S = 0.5
RecordT = TypeVar("RecordT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")

_log = logging.getLogger("adamctl.controller.client")


class ConfigurationStore(Protocol):
    """A small, strongly consistent store of keys: the controllers, or an etcd cluster instead.

    Every call raises UnreachableError (DeadlineError) when the service does not answer in time.
    """

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        """Returns the store's revision and all entries whose key starts with `prefix`, sorted by key; linearizable."""
        ...

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        """Makes all changes at one new revision if every condition holds, else none of them.

        Applied at most once, however often it is sent. Changes nothing if `reply.conflicts` names keys. After an
        UnreachableError it may or may not have been applied: read before trying again.

        Raises:
            RemoteError: BAD_MESSAGE (a malformed key), OVER_QUOTA (the store is full).
        """
        ...

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        """Waits up to `wait_s` seconds for a change under `prefix` after a revision.

        Returns the changed entries as they are now and the deleted keys; neither if the time ran out. With `reset` the
        history is lost and `entries` are all there are. Continue to watch from the returned `revision`.
        """
        ...


class Membership(Protocol):
    """How a process becomes a member of the cluster and stays one. Only the driver uses it."""

    async def register(self, request: NodeRegisterRequest, *, deadline_s: float) -> NodeRegisterReply:
        """Raises ConfigurationError if the name is taken by a living process."""
        ...

    async def beacon(self, node: str, incarnation: int, *, deadline_s: float) -> None:
        """Raises RemoteError with STALE_INCARNATION if this process is no longer the member of this name."""
        ...

    async def leave(self, node: str, incarnation: int, *, deadline_s: float) -> None: ...


async def follow(store: ConfigurationStore, prefix: str, *, wait_s: float = WATCH_S) -> AsyncIterator[Changes]:
    """Yields all entries of a prefix first (`reset`), then every change, without a gap. Never ends by itself."""
    revision, entries = await store.read(prefix)
    yield Changes(revision, tuple(entries), (), True)
    while True:
        changes = await store.watch(prefix, revision, wait_s)
        revision = changes.revision
        if changes.reset or changes.entries or changes.deleted:
            yield changes


async def follow_on(
    store: ConfigurationStore, prefix: str, lost: Callable[[UnreachableError], object], *, wait_s: float = WATCH_S
) -> AsyncIterator[Changes]:
    """As `follow`, and begins again (`reset`) when the service did not answer in time; calls `lost` with the reason.

    For members: their beacons decide for how long the service may be away.
    """
    while True:
        try:
            async for changes in follow(store, prefix, wait_s=wait_s):
                yield changes
        except UnreachableError as error:
            lost(error)
            await asyncio.sleep(FOLLOW_AGAIN_S)


async def read_record(store: ConfigurationStore, key: str, kind: type[RecordT]) -> tuple[RecordT, int] | None:
    """Returns the record under a key and its revision, or None if there is no such key.

    Raises:
        DamagedDataError: the value is not such a record.
    """
    _, entries = await store.read(key)
    for entry in entries:
        if entry.key == key:
            return decode_entry(entry, kind), entry.revision
    return None


async def nodes(store: ConfigurationStore, role: str | None = None) -> list[NodeRecord]:
    """Returns the living nodes, of one role or of all, sorted by name."""
    _, entries = await store.read("/nodes/")
    return nodes_of(entries, role)


def nodes_of(entries: Sequence[ConfigEntry], role: str | None = None) -> list[NodeRecord]:
    """Returns the node records among entries. Skips those that cannot be read."""
    records = [readable(entry, NodeRecord) for entry in entries if entry.key.startswith("/nodes/")]
    return [record for record in records if record is not None and (role is None or record.role == role)]


def readable(entry: ConfigEntry, kind: type[RecordT]) -> RecordT | None:
    """Returns an entry's record; None if it is not one, so that a caller that reads many can skip it."""
    try:
        return decode_entry(entry, kind)
    except DamagedDataError:
        return None


async def wait_for(
    store: ConfigurationStore,
    prefix: str,
    predicate: Callable[[list[ConfigEntry]], ResultT | None],
    deadline_s: float,
    describe: str,
) -> ResultT:
    """Waits until `predicate` of all entries of a prefix returns something other than None or False; returns that.

    Args:
        describe: what the call waits for, as in "two parameter servers"; logged after 2 s, and part of the error.

    Raises:
        UnreachableError: not within `deadline_s` seconds.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    with Waiting(describe):
        revision, entries = await store.read(prefix)
        while True:
            result = predicate(entries)
            if result is not None and result is not False:
                return result
            remaining_s = until_s - loop.time()
            if remaining_s <= 0:
                raise UnreachableError(f"timed out after {deadline_s:g} s waiting for {describe}")
            changes = await store.watch(prefix, revision, min(remaining_s, WATCH_S))
            if changes.reset or changes.entries or changes.deleted:
                revision, entries = await store.read(prefix)
            else:
                revision = changes.revision


class Waiting:
    """`with Waiting("a at b"):` logs the wait, and since when, if the block takes longer than 2 s."""

    def __init__(self, describe: str, *, patience_s: float = SILENCE_S, log: logging.Logger = _log) -> None:
        self.describe = describe
        self._patience_s = patience_s
        self._log = log
        self._handle: asyncio.TimerHandle | None = None
        self._started_s = 0.0

    def __enter__(self) -> Waiting:
        loop = asyncio.get_running_loop()
        self._started_s = loop.time()
        self._handle = loop.call_later(self._patience_s, self._warn)
        return self

    def _warn(self) -> None:
        loop = asyncio.get_running_loop()
        waited_s = loop.time() - self._started_s
        since = (datetime.now().astimezone() - timedelta(seconds=waited_s)).isoformat(timespec="seconds")
        self._log.warning("waiting for %s since %s (%.0f s)", self.describe, since, waited_s)
        self._handle = loop.call_later(SILENCE_REPEAT_S, self._warn)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()


def decode_entry(entry: ConfigEntry, kind: type[RecordT]) -> RecordT:
    """Raises DamagedDataError: the value is not such a record."""
    try:
        return msgspec.msgpack.decode(entry.value, type=kind)
    except UNREADABLE as error:
        raise DamagedDataError(
            f"the configuration's {entry.key} is not a {kind.__name__}: {error}; it was written by another version "
            "of adamctl or by hand; delete or rewrite it"
        ) from error


def configuration_addresses(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns where the configuration is kept, checked: addresses of controllers, or one URL of an etcd cluster.

    Raises:
        ConfigurationError: one of them is malformed, or there are others besides an etcd cluster.
    """
    if not any(map(is_etcd, texts)):
        return tuple(str(parse_address(text)) for text in texts)
    if len(texts) > 1:
        raise ConfigurationError(f"expected one etcd cluster and nothing else; found {' and '.join(texts)}")
    return (parse_etcd_url(texts[0]).text,)


def configuration_places(addresses: Sequence[str]) -> tuple[str, ...]:
    """Returns the addresses of the processes that keep the configuration, controllers or etcd."""
    found = (parse_etcd_url(text).places if is_etcd(text) else (text,) for text in addresses)
    return tuple(place for places in found for place in places)
