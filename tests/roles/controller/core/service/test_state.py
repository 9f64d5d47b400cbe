"""The key state against a plain model, whatever is done to it."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.config.names import NAME_CHARACTERS_MAX
from adamctl.config.records import NUMBER_MAX, NodeRecord, encode, node_key
from adamctl.roles.controller.core.paxos.catch_up import SNAPSHOT_BYTES_MAX
from adamctl.roles.controller.core.service.commands import NAMES_BYTES_MAX, node_in, within_bytes
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.state import (
    KEY_BYTES_MAX,
    STATE_BYTES_MAX,
    Effect,
    KeyState,
    entry_bytes,
)
from adamctl.roles.controller.log_format import PAYLOAD_BYTES_MAX

KEYS = st.sampled_from(["/a", "/a/b", "/b", "/nodes/x"])
CHANGES = st.tuples(st.dictionaries(KEYS, st.binary(max_size=3), max_size=3), st.lists(KEYS, max_size=2, unique=True))


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, max_size=12), st.integers(0, 12), st.sampled_from(["/", "/a", "/a/", "/b"]))
def test_what_a_watcher_knows_after_its_changes_is_what_a_reader_reads(
    changes: list[tuple[dict[str, bytes], list[str]]], known_at: int, prefix: str
) -> None:
    state = KeyState(history_keys_max=6)
    known: dict[str, bytes] = {}
    known_revision = 0
    for number, (puts, deletes) in enumerate(changes):
        if number == known_at:
            known = {entry.key: entry.value for entry in state.read(prefix)}
            known_revision = state.revision
        deletes = [key for key in deletes if key not in puts]
        assert state.size_after(puts, deletes) >= 0
        expected_size = state.size_after(puts, deletes)
        state.apply(Effect(state.revision + bool(puts or deletes), puts, tuple(deletes)))
        assert state.size_bytes == expected_size == sum(entry_bytes(e.key, e.value) for e in state.read(""))
    if known_at >= len(changes):
        known, known_revision = {}, 0
    news = state.changes(prefix, known_revision)
    if news.reset:
        known = {}
    for entry in news.entries:
        known[entry.key] = entry.value
    for key in news.deleted:
        known.pop(key, None)
    assert known == {entry.key: entry.value for entry in state.read(prefix)}
    assert news.revision == state.revision


def test_deleting_what_is_not_there_counts_nothing() -> None:
    state = KeyState()
    state.apply(Effect(1, {"/a": b"x"}))
    state.apply(Effect(2, {}, ("/a", "/b")))
    assert state.size_bytes == 0 and state.read("") == () and state.get("/a") is None


def test_sessions_used_last_are_kept() -> None:
    state = KeyState(sessions_max=2)
    for session in ("one", "two", "one", "three"):
        state.apply(Effect(0, session=session, sequence=1))
    assert state.remembered("one") and state.remembered("three") and state.remembered("two") is None


def test_the_largest_state_fits_into_a_record_and_reaches_other_members() -> None:
    """Whoever may speak to controllers may fill their memory of sessions with conflicts, and then they start again."""
    state, sessions = KeyState(), ControllerConfig().sessions_max
    names = tuple(f"/{number:04d}{'k' * (KEY_BYTES_MAX - 5)}" for number in range(64))
    conflicts = within_bytes(names)
    assert sum(map(len, conflicts)) > NAMES_BYTES_MAX - 1024
    session = f"worker/{'w' * NAME_CHARACTERS_MAX}/" + "\U0001f600" * KEY_BYTES_MAX
    effect = Effect(0, session=session, sequence=NUMBER_MAX, conflicts=conflicts)
    state.apply(effect)
    each = len(msgspec.msgpack.encode(state.snapshot().sessions)) + 16
    largest = STATE_BYTES_MAX + sessions * each + (1 << 20)
    assert largest < min(PAYLOAD_BYTES_MAX, SNAPSHOT_BYTES_MAX)


def test_a_node_whose_record_is_not_text_is_none() -> None:
    state, record = KeyState(history_keys_max=6), NodeRecord("ps-0", "ps", 1, (), "h", 1)
    for value, found in ((encode(record), record), (encode(record).replace(b"ps-0", b"ps-\xff"), None)):
        state.apply(Effect(state.revision + 1, {node_key("ps-0"): value}))
        assert node_in(state, node_key("ps-0")) == found
