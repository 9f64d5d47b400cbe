"""Which cluster a client believes in: the first from which it has read anything, and what a restore makes of it."""

from __future__ import annotations

from adamctl.config.records import LEAP
from adamctl.net.handshake import make_hello
from adamctl.roles.controller.known_cluster import KnownCluster
from adamctl.wire.messages import ConfigReadReply

OLD, NEW = "0a" * 8, "0b" * 8
NOBODY = make_hello("operator", "o")


def of(identity: str, *revisions: int) -> KnownCluster:
    """Returns what a client knows after answers over one connection, which it kept."""
    known = KnownCluster()
    known.connected(identity)
    assert all(known.answered(ConfigReadReply(revision)) for revision in revisions)
    return known


def test_it_is_the_one_from_which_something_was_read() -> None:
    assert KnownCluster().named_in(NOBODY) is NOBODY
    known = of(OLD, 7)
    assert known.named_in(NOBODY).cluster == OLD
    known.connected(OLD)
    assert known.answered(ConfigReadReply(7 + LEAP)) and known.identity == OLD, (
        "restored meanwhile, and still the same cluster"
    )


def test_a_member_names_its_own() -> None:
    member = make_hello("ps", "ps-1", cluster=NEW)
    assert of(OLD, 7).named_in(member) is member


def test_one_on_which_nothing_was_kept_binds_nobody() -> None:
    assert of(NEW, 0).identity == "" and of(NEW).identity == ""
    assert of(NEW, 0, 1).identity == NEW


def test_a_controller_that_names_none_changes_nothing() -> None:
    """One of an earlier version never does."""
    known = of(OLD, 7)
    known.connected("")
    assert known.answered(ConfigReadReply(8)) and known.identity == OLD
    assert of("", 7).identity == ""


def test_a_restore_under_a_connection_makes_it_useless() -> None:
    for before in (0, 3):  # processes that had registered do not keep a backup away
        known = of(NEW, before)
        assert not known.answered(ConfigReadReply(before + LEAP))
        assert known.identity == ""
        known.connected(OLD)
        assert known.answered(ConfigReadReply(before + LEAP)) and known.identity == OLD
