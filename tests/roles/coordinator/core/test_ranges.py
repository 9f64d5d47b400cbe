"""Ranges of passes: what is handed out in which order, when a pass ends, what a snapshot keeps."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from adamctl.roles.coordinator.core.ranges import PassLedger, Range, RangeAllocator


def test_ranges_are_cut_in_order_and_the_last_may_be_short() -> None:
    ledger = PassLedger(3, 20, 8)
    assert [ledger.take(), ledger.take(), ledger.take(), ledger.take()] == [
        Range(3, 0, 8),
        Range(3, 8, 16),
        Range(3, 16, 20),
        None,
    ]


def test_what_comes_back_is_handed_out_first() -> None:
    ledger = PassLedger(0, 40, 8)
    first, second = ledger.take(), ledger.take()
    assert first is not None and second is not None
    ledger.give_back(first.start, first.stop)
    assert ledger.take() == first


def test_the_next_pass_begins_at_once_when_the_fraction_is_done() -> None:
    book = RangeAllocator(2, 32, 8, 0.75)
    taken = [book.take() for _ in range(4)]
    assert book.take() is None, "half of nothing is done yet"
    for given_out in taken[:3]:
        assert given_out is not None and book.finish(given_out)
    assert book.take() == Range(1, 0, 8)
    assert taken[3] is not None and book.finish(taken[3]), "it is still worked on, and counts"


def test_taking_the_last_range_ends_a_pass_that_has_enough_done() -> None:
    book = RangeAllocator(2, 32, 8, 0.75)
    for _ in range(3):
        taken = book.take()
        assert taken is not None
        book.finish(taken)
    assert book.take() == Range(0, 24, 32)
    assert book.take() == Range(1, 0, 8)


def test_after_the_last_pass_nothing_is_handed_out_again() -> None:
    book = RangeAllocator(1, 32, 8, 0.5)
    taken = [book.take() for _ in range(4)]
    for given_out in taken[:2]:
        assert given_out is not None
        book.finish(given_out)
    assert book.finished
    assert taken[3] is not None
    book.give_back(taken[3])
    assert book.take() is None


@given(
    examples=st.integers(1, 300),
    range_examples=st.integers(1, 50),
    other_range_examples=st.integers(1, 50),
    pass_fraction=st.floats(0.1, 1.0),
    choices=st.lists(st.integers(0, 9), max_size=120),
)
@example(
    examples=5, range_examples=2, other_range_examples=1, pass_fraction=0.125,
    choices=[0, 0, 0, 5, 0, 0, 0, 5, 5, 5, 0, 0, 6, 0, 6, 8],
)  # fmt: skip
def test_a_snapshot_keeps_exactly_what_is_done(
    examples: int, range_examples: int, other_range_examples: int, pass_fraction: float, choices: list[int]
) -> None:
    book = RangeAllocator(3, examples, range_examples, pass_fraction)
    out: list[Range] = []
    done: set[tuple[int, int]] = set()
    for choice in choices:
        if choice < 5:
            taken = book.take()
            out += [taken] if taken is not None else []
        elif out and choice < 9:
            given_out = out.pop(choice % len(out))
            book.finish(given_out)
            done |= {(given_out.pass_number, example) for example in range(given_out.start, given_out.stop)}
        elif out:
            book.give_back(out.pop(0))
    resumed = RangeAllocator(3, examples, other_range_examples, 1.0)
    resumed.restore(book.state())
    assert resumed.handed_out == book.handed_out
    if resumed.finished:  # what was out when the last pass ended stays undone: the end waits for nobody
        assert resumed.take() is None and done >= {(2, example) for example in range(examples)}
        return
    again: list[tuple[int, int]] = []
    while (taken := resumed.take()) is not None:
        again += [(taken.pass_number, example) for example in range(taken.start, taken.stop)]
        resumed.finish(taken)
    assert len(again) == len(set(again))
    assert set(again).isdisjoint(done)
    assert set(again) | done == {(number, example) for number in range(3) for example in range(examples)}
