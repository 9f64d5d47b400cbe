"""Who lives and who is being emptied follows from the keys."""

from __future__ import annotations

import pytest

from adamctl.config.records import DrainRecord, NodeRecord, drain_key, encode, node_key
from adamctl.roles.ps.replication.core.node_keys import NodeKeys
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry


def node(name: str, incarnation: int, revision: int, role: str = "ps") -> ConfigEntry:
    return ConfigEntry(node_key(name), encode(NodeRecord(name, role, incarnation, (), "h", 1)), revision)


def test_servers_come_and_go() -> None:
    keys = NodeKeys()
    keys.take_nodes(Changes(5, (node("ps-0", 3, 5), node("w", 4, 5, "worker")), (), True))
    assert set(keys.nodes) == {"ps-0"} and not keys.told
    keys.take_drains(Changes(5, (), (), True))
    assert keys.told
    keys.take_nodes(Changes(7, (node("ps-1", 6, 7),), (node_key("ps-0"), node_key("w"))))
    assert {name: view.revision for name, view in keys.nodes.items()} == {"ps-1": 7}
    keys.take_nodes(Changes(9, (), (), True))
    assert not keys.nodes and not keys.records


def test_a_watch_that_is_late_takes_nothing_back() -> None:
    keys = NodeKeys()
    keys.found("ps-0", node("ps-0", 8, 9), 9)
    keys.take_nodes(Changes(5, (node("ps-0", 3, 5),), ()))
    keys.take_nodes(Changes(7, (), (node_key("ps-0"),)))
    assert keys.nodes["ps-0"].record.incarnation == 8
    keys.take_nodes(Changes(9, (node("ps-0", 8, 9),), ()))
    keys.take_nodes(Changes(12, (), (node_key("ps-0"),)))
    assert not keys.nodes


def test_a_read_that_is_older_than_the_watch_removes_no_living_server() -> None:
    """It was on its way when the server came; the watch does not tell that a second time."""
    keys = NodeKeys()
    keys.take_nodes(Changes(4, (), (), True))
    keys.take_nodes(Changes(9, (node("ps-0", 8, 9),), ()))
    keys.found("ps-0", None, 7)
    keys.found("ps-0", node("ps-0", 3, 5), 8)
    assert keys.nodes["ps-0"].record.incarnation == 8
    keys.found("ps-0", None, 9)
    assert not keys.nodes


def test_of_two_reads_the_newer_one_counts() -> None:
    keys = NodeKeys()
    keys.found("ps-0", node("ps-0", 8, 9), 9)
    keys.found("ps-0", None, 7)
    assert keys.nodes["ps-0"].record.incarnation == 8
    keys.take_nodes(Changes(2, (node("ps-0", 1, 2),), (), True))  # another store, whose revisions are its own
    keys.found("ps-0", None, 3)
    assert not keys.nodes


def test_only_the_process_that_was_meant_is_emptied() -> None:
    keys = NodeKeys()
    drain = ConfigEntry(drain_key("ps-0"), encode(DrainRecord(3, 0.0)), 6)
    keys.take_drains(Changes(6, (drain,), (), True))
    assert not keys.draining
    keys.take_nodes(Changes(5, (node("ps-0", 3, 5),), (), True))
    assert keys.draining == {"ps-0"}
    keys.take_nodes(Changes(8, (node("ps-0", 7, 8),), ()))
    assert not keys.draining
    keys.take_nodes(Changes(8, (node("ps-0", 3, 9),), ()))
    keys.take_drains(Changes(9, (), (drain_key("ps-0"),)))
    assert not keys.draining


@pytest.mark.parametrize(
    "value", [b"\xc1", node("ps-0", 3, 5).value.replace(b"ps-0", b"ps-\xff")], ids=("no record", "no text")
)
def test_what_cannot_be_read_is_no_node(value: bytes) -> None:
    keys = NodeKeys()
    keys.take_nodes(Changes(5, (ConfigEntry(node_key("ps-0"), value, 5),), (), True))
    keys.take_drains(Changes(5, (ConfigEntry(drain_key("ps-0"), value, 5),), (), True))
    assert not keys.nodes and not keys.draining
