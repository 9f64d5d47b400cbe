"""One range from several servers: every example once, whoever dies, is slow, answers late, or comes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from adamctl.errors import ProtocolError
from adamctl.roles.data.client.sharing import Ask, RangeReading
from adamctl.roles.data.order.ownership import Ownership, Share, share_problem

EXAMPLES = 40
BLOCKS = np.arange(EXAMPLES) // 2
SERVERS = ("a", "b", "c", "d")


def part(ask: Ask, blocks: np.ndarray = BLOCKS) -> np.ndarray:
    """What a server answers that does as it should."""
    rows = np.arange(len(blocks)) if ask.rows is None else ask.rows
    mine = Ownership("set", ask.servers).part(blocks[rows], ask.server)
    found: np.ndarray = rows[mine].astype(np.int32)
    return found


def test_two_servers_give_a_range_in_one_round() -> None:
    reading = RangeReading(EXAMPLES)
    asks = reading.begin(["b", "a"])
    assert [(ask.server, ask.servers, ask.rows) for ask in asks] == [("a", ("a", "b"), None), ("b", ("a", "b"), None)]
    parts = [part(ask) for ask in asks]
    assert all(0 < len(each) < EXAMPLES for each in parts)
    for ask, positions in zip(asks, parts, strict=True):
        assert not reading.complete and reading.waits_for(ask)
        assert reading.answered(ask, positions).tolist() == list(range(len(positions)))
    assert reading.complete and reading.round_over and reading.twice == 0


def test_what_a_dead_server_owned_and_nothing_else_is_asked_of_the_others() -> None:
    reading = RangeReading(EXAMPLES)
    first, second, third = reading.begin(SERVERS[:3])
    reading.answered(first, part(first))
    reading.failed(second)
    assert not reading.round_over, "what is missing is known when all have answered"
    reading.answered(third, part(third))
    assert reading.round_over and not reading.complete
    again = reading.begin(["a", "c"])
    for ask in again:
        assert ask.rows is not None and ask.rows.tolist() == part(second).tolist()
        assert share_problem(Share(ask.servers, ask.receiver, ask.rows.tobytes()), EXAMPLES) is None
        reading.answered(ask, part(ask))
    assert reading.complete and reading.twice == 0


def test_a_late_answer_counts_and_what_comes_again_is_dropped_and_counted() -> None:
    reading = RangeReading(EXAMPLES)
    first, second = reading.begin(["a", "b"])
    reading.answered(first, part(first))
    reading.failed(second)  # it is slow
    (again,) = reading.begin(["a"])
    late = part(second)
    assert len(reading.answered(second, late)) == len(late) and reading.complete
    assert len(reading.answered(again, part(again))) == 0
    assert reading.twice == len(late)


def test_servers_that_disagree_are_found_out() -> None:
    reading = RangeReading(EXAMPLES)
    first, second = reading.begin(["a", "b"])
    reading.answered(first, part(first))
    with pytest.raises(ProtocolError, match=r"b: .*position \d+ again.*a, b disagree"):
        reading.answered(second, np.arange(EXAMPLES, dtype=np.int32))
    reading = RangeReading(EXAMPLES)
    first, second = reading.begin(["a", "b"])
    reading.answered(first, part(first))
    with pytest.raises(ProtocolError, match="found 1 from none, the first at position"):
        reading.answered(second, part(second)[:-1])


@pytest.mark.parametrize(
    ("positions", "said"),
    [([3, 2], "ascending"), ([1, 1], "ascending"), ([-1, 4], "range of 40"), ([0, EXAMPLES], "range of 40")],
)
def test_positions_that_cannot_be_are_refused(positions: list[int], said: str) -> None:
    reading = RangeReading(EXAMPLES)
    ask, _ = reading.begin(["a", "b"])
    with pytest.raises(ProtocolError, match=said):
        reading.answered(ask, np.array(positions, np.int32))


def test_positions_that_were_not_asked_for_are_refused() -> None:
    reading = RangeReading(EXAMPLES)
    first, second = reading.begin(["a", "b"])
    reading.answered(first, part(first))
    reading.failed(second)
    (again,) = reading.begin(["a"])
    with pytest.raises(ProtocolError, match="none but the positions asked for"):
        reading.answered(again, part(first))


@pytest.mark.parametrize("seed", range(60))
def test_every_example_comes_exactly_once_whatever_happens(seed: int) -> None:
    """Servers die, come back, come new, are given up and answer later, twice over; blocks are of any length."""
    chance = Random(seed)
    blocks = np.repeat(np.arange(30), np.random.default_rng(seed).integers(1, 6, 30))
    reading, taken = RangeReading(len(blocks)), np.zeros(len(blocks), np.int64)
    alive, pending, late = set(SERVERS[: chance.randint(1, 4)]), list[Ask](), list[Ask]()
    twice = 0

    def answer(ask: Ask) -> None:
        nonlocal twice
        positions = part(ask, blocks)
        new = reading.answered(ask, positions)
        taken[positions[new]] += 1
        twice += len(positions) - len(new)

    for _ in range(500):
        if reading.complete:
            break
        if reading.round_over:
            if not alive:
                alive.add(chance.choice(SERVERS))
            pending = reading.begin(alive)
        event = chance.choice(("answers", "answers", "dies", "is slow", "answers late", "comes"))
        if event == "comes":
            alive.add(chance.choice(SERVERS))
        elif event == "answers late" and late:
            answer(late.pop(chance.randrange(len(late))))
        elif pending:
            ask = pending.pop(chance.randrange(len(pending)))
            if event == "answers":
                answer(ask)
            else:
                reading.failed(ask)
                late.extend([ask] if event == "is slow" else [])
                alive.discard(ask.server)
    assert reading.complete
    for ask in late:
        answer(ask)
    assert taken.tolist() == [1] * len(blocks)
    assert reading.twice == twice
