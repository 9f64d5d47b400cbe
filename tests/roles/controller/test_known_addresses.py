"""Where a process finds controllers that were replaced since it started."""

from __future__ import annotations

import os

import pytest

from adamctl.roles.controller.known_addresses import SEEN_VARIABLE, KnownAddresses

GIVEN = ("tcp://a:1", "tcp://b:1", "tcp://c:1")


def test_the_present_controllers_come_first_and_those_given_are_never_forgotten() -> None:
    known = KnownAddresses(GIVEN)
    known.learn(GIVEN)
    assert known.now == GIVEN
    known.learn(("tcp://b:1", "tcp://c:1", "tcp://d:1"))
    assert known.now == ("tcp://b:1", "tcp://c:1", "tcp://d:1", "tcp://a:1")
    known.learn(("tcp://d:1", "tcp://e:1", "tcp://f:1"))
    assert known.now == ("tcp://d:1", "tcp://e:1", "tcp://f:1", *GIVEN)
    known.learn(("tcp://e:1", "tcp://f:1", "tcp://g:1"))
    assert known.now[:3] == ("tcp://e:1", "tcp://f:1", "tcp://g:1"), "all of the given ones are gone by now"


def test_addresses_of_another_network_come_last() -> None:
    known = KnownAddresses(("tcp://127.0.0.1:7070",))
    for members in (("tcp://10.0.0.1:1", "tcp://10.0.0.2:1"), ("tcp://10.0.0.2:1", "tcp://10.0.0.3:1")):
        known.learn(members)
        assert known.now == ("tcp://127.0.0.1:7070", *members), "they may not be reachable from here"


@pytest.mark.parametrize("members", [(), ("",), ("tcp://a:1", "no address"), tuple(f"tcp://h{n}:1" for n in range(6))])
def test_what_makes_no_sense_is_not_believed(members: tuple[str, ...]) -> None:
    known = KnownAddresses(GIVEN)
    known.learn(members)
    assert known.now == GIVEN


def test_a_process_that_starts_over_keeps_what_it_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEEN_VARIABLE, "")
    before = KnownAddresses(GIVEN)
    for members in (("tcp://c:1", "tcp://d:1"), ("tcp://d:1", "tcp://e:1")):
        before.learn(members)
    before.hand_on()
    after = KnownAddresses(GIVEN)
    after.take_over()
    assert after.now == before.now and SEEN_VARIABLE not in os.environ
    after.hand_on()
    once_more = KnownAddresses(GIVEN)
    once_more.take_over()
    assert once_more.now == before.now, "also if no beacon was answered in between"
    after.learn(("tcp://e:1", "tcp://f:1"))
    assert after.now[:2] == ("tcp://e:1", "tcp://f:1")
    fresh = KnownAddresses(GIVEN)
    fresh.take_over()
    assert fresh.now == GIVEN


def test_addresses_behind_a_forwarded_port_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEEN_VARIABLE, raising=False)
    known = KnownAddresses(("tcp://127.0.0.1:7070",))
    known.learn(("tcp://10.0.0.1:1", "tcp://10.0.0.2:1"))
    known.hand_on()
    assert SEEN_VARIABLE not in os.environ
