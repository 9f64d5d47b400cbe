"""What everything that calls itself a `ConfigurationStore` must do, whoever stands behind it."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.config.records import BucketRecord, bucket_key, encode
from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.roles.configuration import ConfigurationStore, follow, read_record, wait_for
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigEntry

LONG_S = 30.0
"""Bound of waits that end by themselves."""


async def put(store: ConfigurationStore, **values: bytes) -> int:
    reply = await store.compare_and_set(ConfigChanges({}, {f"/jobs/t/{name}": value for name, value in values.items()}))
    assert reply.conflicts == ()
    return reply.revision


class Conformance:
    """Inherited by one test class per implementation, each with its own `store` fixture."""

    async def test_a_read_shows_what_was_written_sorted(self, store: ConfigurationStore) -> None:
        revision = await put(store, b=b"2", a=b"1")
        seen, entries = await store.read("/jobs/t/")
        assert seen == revision
        assert entries == [ConfigEntry("/jobs/t/a", b"1", revision), ConfigEntry("/jobs/t/b", b"2", revision)]
        assert await store.read("/nothing/") == (revision, [])

    async def test_all_changes_or_none(self, store: ConfigurationStore) -> None:
        first = await put(store, a=b"1")
        refused = await store.compare_and_set(
            ConfigChanges({"/jobs/t/a": first, "/jobs/t/b": first}, {"/jobs/t/c": b""}, ("/jobs/t/a",))
        )
        assert refused.conflicts == ("/jobs/t/b",)
        assert (await store.read("/jobs/t/"))[1] == [ConfigEntry("/jobs/t/a", b"1", first)]
        done = await store.compare_and_set(
            ConfigChanges({"/jobs/t/a": first, "/jobs/t/b": 0}, {"/jobs/t/b": b"2"}, ("/jobs/t/a",))
        )
        assert done.conflicts == () and done.revision == first + 1
        assert [entry.key for entry in (await store.read("/jobs/t/"))[1]] == ["/jobs/t/b"]

    async def test_of_many_who_want_one_key_one_gets_it(self, store: ConfigurationStore) -> None:
        changes = [ConfigChanges({"/jobs/t/lock": 0}, {"/jobs/t/lock": bytes([number])}) for number in range(8)]
        replies = await asyncio.gather(*(store.compare_and_set(change) for change in changes))
        winners = [number for number, reply in enumerate(replies) if not reply.conflicts]
        assert len(winners) == 1
        assert (await store.read("/jobs/t/lock"))[1][0].value == bytes(winners)

    async def test_a_counter_loses_no_increment(self, store: ConfigurationStore) -> None:
        async def increment() -> None:
            while True:
                _, entries = await store.read("/jobs/t/n")
                value, revision = (int(entries[0].value), entries[0].revision) if entries else (0, 0)
                reply = await store.compare_and_set(
                    ConfigChanges({"/jobs/t/n": revision}, {"/jobs/t/n": str(value + 1).encode()})
                )
                if not reply.conflicts:
                    return

        await asyncio.gather(*(increment() for _ in range(6)))
        assert (await store.read("/jobs/t/n"))[1][0].value == b"6"

    async def test_a_watch_ends_with_the_change(self, store: ConfigurationStore) -> None:
        revision = await put(store, a=b"1")
        watching = asyncio.create_task(store.watch("/jobs/t/", revision, LONG_S))
        await asyncio.sleep(0.01)
        assert not watching.done()
        await put(store, b=b"2")
        await store.compare_and_set(ConfigChanges({}, {}, ("/jobs/t/a",)))
        changes = await watching
        assert [entry.key for entry in changes.entries] == ["/jobs/t/b"] and not changes.reset
        if not changes.deleted:  # a slow watch may see both changes at once
            changes = await store.watch("/jobs/t/", changes.revision, LONG_S)
        assert changes.deleted == ("/jobs/t/a",)

    async def test_a_watch_ends_with_its_time(self, store: ConfigurationStore) -> None:
        revision = await put(store, a=b"1")
        changes = await store.watch("/jobs/t/", revision, 0.02)
        assert (changes.entries, changes.deleted, changes.reset) == ((), (), False)
        assert changes.revision == revision

    async def test_a_watch_can_be_given_up(self, store: ConfigurationStore) -> None:
        watching = asyncio.create_task(store.watch("/jobs/t/", 0, LONG_S))
        await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await put(store, a=b"1")

    async def test_malformed_keys_are_refused(self, store: ConfigurationStore) -> None:
        with pytest.raises(RemoteError) as caught:
            await store.compare_and_set(ConfigChanges({}, {"no-slash": b""}))
        assert caught.value.code == ErrorCode.BAD_MESSAGE
        await put(store, a=b"1")

    async def test_a_megabyte_value_and_thousands_of_keys(self, store: ConfigurationStore) -> None:
        await put(store, big=b"x" * (1 << 20))
        many = {f"/jobs/t/many/{number:04d}": b"y" * 100 for number in range(2000)}
        await store.compare_and_set(ConfigChanges(dict.fromkeys(many, 0), many))
        _, entries = await store.read("/jobs/t/")
        assert len(entries) == 2001 and len(entries[0].value) == 1 << 20

    async def test_following_shows_everything_once(self, store: ConfigurationStore) -> None:
        await put(store, a=b"1")
        seen: list[tuple[bool, list[str]]] = []

        async def watch() -> None:
            async for changes in follow(store, "/jobs/t/", wait_s=1.0):
                seen.append((changes.reset, [entry.key for entry in changes.entries]))
                if len(seen) == 3:
                    return

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(LONG_S):
            for number, name in enumerate(("b", "c"), 1):
                while len(seen) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await put(store, **{name: b""})
            await watching
        assert seen == [(True, ["/jobs/t/a"]), (False, ["/jobs/t/b"]), (False, ["/jobs/t/c"])]

    async def test_records_are_read_by_kind(self, store: ConfigurationStore) -> None:
        key = bucket_key("job", 3)
        await store.compare_and_set(ConfigChanges({}, {key: encode(BucketRecord(4, "ps-0"))}))
        found = await read_record(store, key, BucketRecord)
        assert found is not None and found[0] == BucketRecord(4, "ps-0")
        assert await read_record(store, bucket_key("job", 4), BucketRecord) is None
        other = "/jobs/t/a"  # controllers keep no such value where a bucket's record belongs
        not_text = encode(BucketRecord(4, "ps-0")).replace(b"ps-0", b"ps-\xff")
        for value in (b"\xc1", not_text):
            await store.compare_and_set(ConfigChanges({}, {other: value}))
            with pytest.raises(DamagedDataError, match="/jobs/t/a is not a BucketRecord"):
                await read_record(store, other, BucketRecord)

    async def test_waiting_for_keys(self, store: ConfigurationStore) -> None:
        async def two() -> list[ConfigEntry]:
            return await wait_for(store, "/jobs/t/ps", lambda e: e if len(e) == 2 else None, LONG_S, "two servers")

        waiting = asyncio.create_task(two())
        for number in range(2):
            await store.compare_and_set(ConfigChanges({}, {f"/jobs/t/ps-{number}": b""}))
        assert len(await waiting) == 2

    async def test_waiting_in_vain_ends(self, store: ConfigurationStore) -> None:
        with pytest.raises(UnreachableError, match=r"timed out after 0\.05 s waiting for a sign"):
            await wait_for(store, "/jobs/t/", lambda entries: entries or None, 0.05, "a sign")
