"""The checker of histories finds what no single store could have answered, and lets the rest pass."""

from __future__ import annotations

import pytest

from adamctl.wire.messages import ConfigChanges
from tests.sim.controllers.history import History, Operation
from tests.sim.engine import ViolationError, World


class Told:
    """A history told line by line; each operation takes one second and follows the one before, unless it overlaps."""

    def __init__(self) -> None:
        self.world = World(0)
        self.history = History(self.world)

    def change(self, value: str, revision: int, condition: int = 0, conflict: bool = False) -> Operation:
        operation = self.begin(value, condition)
        self.world.now_s += 1
        self.history.changed(operation, revision, ("/t/a",) if conflict else ())
        self.world.now_s += 1
        return operation

    def begin(self, value: str, condition: int = 0) -> Operation:
        return self.history.invoke("c", "change", ConfigChanges({"/t/a": condition}, {"/t/a": value.encode()}))

    def read(self, revision: int, value: str = "", at: int = 0) -> None:
        operation = self.history.invoke("r", "read")
        self.world.now_s += 1
        self.history.read(operation, revision, {"/t/a": (value.encode(), at)} if value else {})
        self.world.now_s += 1


def test_one_thing_after_another_is_possible() -> None:
    told = Told()
    told.read(0)
    told.change("x", 1)
    told.change("y", 1, condition=7, conflict=True)
    told.read(1, "x", 1)
    told.change("z", 2, condition=1)
    told.read(2, "z", 2)
    told.history.check()


def test_a_change_nobody_heard_the_end_of_may_or_may_not_have_been_made() -> None:
    told = Told()
    told.begin("lost")
    told.begin("never")
    told.read(1, "lost", 1)
    told.change("y", 1, condition=0, conflict=True)
    told.history.check()


def test_a_stale_read_is_found() -> None:
    told = Told()
    told.change("x", 1)
    told.change("y", 2, condition=1)
    told.read(1, "x", 1)
    with pytest.raises(ViolationError, match="after revision 2 had been answered"):
        told.history.check()


def test_a_lost_change_is_found() -> None:
    told = Told()
    told.change("x", 1)
    told.read(2)
    with pytest.raises(ViolationError, match="read /t/a at 0 when it had been at 1"):
        told.history.check()


def test_a_change_made_twice_is_found() -> None:
    told = Told()
    told.begin("x")
    told.read(1, "x", 1)
    told.read(2, "x", 2)
    with pytest.raises(ViolationError, match="written at revisions 1 and 2"):
        told.history.check()


def test_a_refused_change_that_was_made_is_found() -> None:
    told = Told()
    told.change("x", 1, condition=9, conflict=True)
    told.read(2, "x", 2)
    with pytest.raises(ViolationError, match="nobody had written"):
        told.history.check()


def test_a_change_against_its_condition_is_found() -> None:
    told = Told()
    told.change("x", 1)
    told.change("y", 2, condition=0)
    with pytest.raises(ViolationError, match="was made although /t/a was at revision 1"):
        told.history.check()


def test_a_change_refused_for_nothing_is_found() -> None:
    told = Told()
    told.change("x", 1)
    told.change("y", 1, condition=1, conflict=True)
    with pytest.raises(ViolationError, match="was refused although /t/a was at revision 1"):
        told.history.check()


def test_two_changes_at_one_revision_are_found() -> None:
    told = Told()
    one, two = told.begin("x"), told.begin("y")
    told.history.changed(one, 1, ())
    told.history.changed(two, 1, ())
    with pytest.raises(ViolationError, match="revision 1 was given to"):
        told.history.check()
