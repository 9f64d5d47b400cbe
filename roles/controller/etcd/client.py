"""An etcd cluster instead of controllers: `ConfigurationStore` and `Membership` over etcd's gateway.

docs/etcd.md says how to run one, docs/decisions/0017-etcd.md why this protocol was chosen.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from typing import Any

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.roles.configuration import SILENCE_S, Waiting
from adamctl.roles.controller.etcd.gateway import (
    OUT_OF_RANGE,
    EtcdError,
    Gateway,
    Json,
    decoded,
    encoded,
    number,
    revision_of,
)
from adamctl.roles.controller.etcd.nodes import Nodes
from adamctl.roles.controller.etcd.session import Changer
from adamctl.roles.controller.etcd.status import status_of
from adamctl.roles.controller.etcd.url import parse_etcd_url
from adamctl.wire.changes import Changes
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigEntry,
    NodeRegisterReply,
    NodeRegisterRequest,
)

PAGE_KEYS = 500
HISTORY_S = 0.3
"""etcd checks every 0.1 s what a new watch has missed."""
CLOSE_DEADLINE_S = 1.0
_PAUSE_S = 0.2


class EtcdClient:
    """`ConfigurationStore` and `Membership` on top of etcd. The counterpart of `ControllerClient`."""

    notices_ends = False
    """etcd only knows leases; `adamctl.roles.failure_detector` finds members that have ended."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 30.0,
        attempt_s: float = 2.0,
        watch_s: float = 10.0,
        log: logging.Logger | None = None,
    ) -> None:
        """
        Args:
            url: as in `adamctl.roles.controller.etcd.url`.
            deadline_s: of every call that is not given one.
            attempt_s: after this long without an answer the next member of etcd is asked.
            watch_s: longer watches are asked for in pieces of this length, so that a silent end is noticed.

        Raises:
            ConfigurationError: the URL is malformed, or a package needed for etcd is not installed.
        """
        parsed = parse_etcd_url(url)
        if importlib.util.find_spec("aiohttp") is None:
            raise ConfigurationError("etcd needs aiohttp; pip install 'adamctl[etcd]'")
        self.addresses = (url,)
        self.deadline_s = deadline_s
        self.watch_s = watch_s
        self._root = parsed.root
        self._log = log or logging.getLogger("adamctl.controller.client")
        self._gateway = Gateway(parsed, attempt_s=attempt_s, log=self._log)
        self._changer = Changer(self._gateway, self._key)
        self._nodes = Nodes(self._gateway, self._key)

    # --- ConfigurationStore -------------------------------------------------------------------------------------------

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.deadline_s
        while True:
            try:
                return await self._read_pages(self._range(prefix), until_s)
            except EtcdError as error:
                if error.status != OUT_OF_RANGE or loop.time() > until_s:
                    raise
                # compacted between two pages

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        return await self._changer.compare_and_set(changes, self.deadline_s)

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        answered_s = loop.time()
        with Waiting(f"etcd at {self.addresses[0]}", patience_s=SILENCE_S + wait_s, log=self._log):
            while True:
                try:
                    asked_s = min(max(until_s - loop.time(), 0.0), self.watch_s)
                    changes = await self._watch_once(prefix, after_revision, asked_s)
                    answered_s = loop.time()
                except UnreachableError as error:
                    silent_s = loop.time() - answered_s
                    if silent_s > self.deadline_s + wait_s:
                        text = f"etcd at {self.addresses[0]} did not answer for {silent_s:.0f} s ({error})"
                        raise UnreachableError(text) from error
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if changes is not None:
                    return changes
                if loop.time() >= until_s:
                    return Changes(after_revision)

    # --- Membership ---------------------------------------------------------------------------------------------------

    async def register(self, request: NodeRegisterRequest, *, deadline_s: float | None = None) -> NodeRegisterReply:
        return await self._nodes.register(request, self._allowed_s(deadline_s))

    async def beacon(self, node: str, incarnation: int, *, deadline_s: float | None = None) -> None:
        await self._nodes.beacon(node, incarnation, self._allowed_s(deadline_s))

    async def leave(self, node: str, incarnation: int, *, why: str = "", deadline_s: float | None = None) -> None:
        """Removes a node's key at once, also that of a process known to have ended. etcd has no use for `why`."""
        await self._nodes.leave(node, incarnation, self._allowed_s(deadline_s))

    # --- etcd itself --------------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Returns who leads, the members and how far each is behind, named as in a controller's STATUS."""
        return await status_of(self._gateway, self.deadline_s)

    async def close(self) -> None:
        """Ends the session and closes all connections. The client can be used again afterwards."""
        await self._changer.end(CLOSE_DEADLINE_S)
        await self._gateway.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _allowed_s(self, deadline_s: float | None) -> float:
        return self.deadline_s if deadline_s is None else deadline_s

    def _key(self, key: str) -> str:
        return self._root + key

    def _range(self, prefix: str) -> Json:
        """Returns the range of keys with a prefix; keys that do not begin with '/' are internal and left out."""
        first = self._key(prefix or "/").encode()
        return {"key": encoded(first), "range_end": encoded(first[:-1] + bytes([first[-1] + 1]))}

    async def _read_pages(self, keys: Json, until_s: float) -> tuple[int, list[ConfigEntry]]:
        """Reads page after page at the revision of the first one, since the size of an answer is bounded."""
        loop = asyncio.get_running_loop()
        request: Json = {**keys, "limit": PAGE_KEYS}
        revision = 0
        entries: list[ConfigEntry] = []
        while True:
            reply = await self._gateway.call("kv/range", request, until_s - loop.time())
            page = [self._entry(pair) for pair in reply.get("kvs", ())]
            entries += page
            revision = revision or revision_of(reply)
            if not reply.get("more") or not page:
                return revision, entries
            request = {**request, "key": encoded(self._key(page[-1].key) + "\0"), "revision": str(revision)}

    def _entry(self, pair: Json) -> ConfigEntry:
        key = decoded(pair["key"]).decode().removeprefix(self._root)
        return ConfigEntry(key, decoded(pair.get("value", "")), number(pair, "mod_revision"))

    async def _watch_once(self, prefix: str, after_revision: int, wait_s: float) -> Changes | None:
        """Returns the first changes after a revision, at least all of one revision; None if the time ran out."""
        loop = asyncio.get_running_loop()
        request = {"create_request": {**self._range(prefix), "start_revision": str(after_revision + 1)}}
        listening = False
        try:
            async with (
                asyncio.timeout(self._gateway.attempt_s) as patience,
                self._gateway.stream("watch", request) as results,
            ):
                async for result in results:
                    if result.get("canceled"):
                        if number(result, "compact_revision"):
                            return await self._reset(prefix)
                        self._gateway.forget_login()  # so it says that a token is no longer valid
                        self._gateway.skip_member()
                        raise UnreachableError(f"etcd ended a watch: {result.get('cancel_reason', 'no reason given')}")
                    if result.get("events"):
                        return self._changes(result["events"])
                    if result.get("created"):
                        listening = True
                        there = revision_of(result)
                        patience.reschedule(
                            loop.time() + (wait_s if there <= after_revision else max(wait_s, HISTORY_S))
                        )
                        if there < after_revision:
                            changes = await self._reset(prefix)
                            if changes.revision < after_revision:  # not the store that the caller knew
                                return changes
                            # that member just had not received it yet
        except TimeoutError:
            if listening:
                return None
        self._gateway.skip_member()
        raise UnreachableError(f"etcd at {self.addresses[0]} does not keep a watch")

    async def _reset(self, prefix: str) -> Changes:
        revision, entries = await self.read(prefix)
        return Changes(revision, tuple(entries), (), True)

    def _changes(self, events: list[Json]) -> Changes:
        """Returns the changes that events describe, by the events' own revisions: a reply's header may be ahead."""
        found: dict[str, ConfigEntry | None] = {}
        revision = 0
        for event in events:
            entry = self._entry(event["kv"])
            found[entry.key] = None if event.get("type") == "DELETE" else entry
            revision = max(revision, entry.revision)
        present = tuple(found[key] for key in sorted(found) if found[key] is not None)
        return Changes(revision, present, tuple(sorted(key for key, entry in found.items() if entry is None)))  # type: ignore[arg-type]
