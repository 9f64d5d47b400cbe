"""How much of what is decided a member keeps in memory for those that lag."""

from __future__ import annotations

import pytest

from adamctl.roles.controller.core.instructions import Instruction
from adamctl.roles.controller.core.paxos.acceptor import LOG_BYTES_KEPT, LOG_BYTES_MAX, LOG_ENTRIES_MAX, Acceptor
from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, Member, Vote

BALLOT = Ballot(1, 1)


class Length:
    """A machine of which only the length of its state is known, and which sends nothing."""

    def __init__(self, state_bytes: int) -> None:
        self.state_bytes = state_bytes

    def apply(self, entry: Entry) -> None:
        return

    def encode_state(self) -> bytes:
        return bytes(self.state_bytes)

    def restore_state(self, state: bytes) -> None:
        return

    def value_problem(self, value: bytes) -> str:
        return ""

    def state_problem(self, state: bytes) -> str:
        return ""

    def put(self, instruction: Instruction) -> None:
        return


def kept(state_bytes: int, value_bytes: int, count: int) -> int:
    """Returns how many of the last entries a member can still give to one that lags."""
    machine = Length(state_bytes)
    acceptor = Acceptor(machine, machine, Vote("a", 1, 1, BALLOT, (Member("a", 1),)))
    value = bytes(value_bytes)
    acceptor.learn(Entry(slot, BALLOT, value) for slot in range(1, count + 1))
    assert acceptor.chosen_to == count
    return next(n for n in range(count, 0, -1) if acceptor.decided_after(count - n, 1) is not None)


def test_no_more_is_kept_than_a_snapshot_is_long() -> None:
    value_bytes = 64 << 10
    few = LOG_BYTES_KEPT // value_bytes
    assert kept(0, value_bytes, 3 * few) == few
    assert kept(2 * LOG_BYTES_KEPT, value_bytes, 3 * few) == 2 * few
    assert kept(9 * LOG_BYTES_KEPT, value_bytes, 9 * few) == LOG_BYTES_MAX // value_bytes


@pytest.mark.parametrize("value_bytes", [0, 10])
def test_small_values_are_bounded_by_their_number(value_bytes: int) -> None:
    assert kept(0, value_bytes, LOG_ENTRIES_MAX + 100) == LOG_ENTRIES_MAX


def test_the_last_value_is_kept_however_long_it_is() -> None:
    assert kept(0, 2 * LOG_BYTES_KEPT, 3) == 1
