"""Examples that a worker keeps: bounded, and what the next evaluation needs stays rather than what was used last."""

from __future__ import annotations

import random

from adamctl.roles.worker.core.example_memory import ExampleMemory, Span

EXAMPLE_BYTES = 10
SPANS = [Span(start, start + 4) for start in range(0, 40, 4)]
SPAN_BYTES = 4 * EXAMPLE_BYTES


def evaluate(memory: ExampleMemory, evaluation: int, spans: list[Span]) -> int:
    """Uses ranges one after another; returns how many had to be read."""
    read = 0
    for span in spans:
        if memory.need(span, evaluation):
            read += 1
            memory.arrived(span)
        assert memory.has(span)
        memory.release(span)
    return read


def test_what_fits_is_read_once() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 10 * SPAN_BYTES)
    assert [evaluate(memory, number, SPANS) for number in (1, 2, 3)] == [10, 0, 0]
    assert memory.used_bytes == 10 * SPAN_BYTES
    assert memory.take_dropped() == []


def test_of_more_than_fits_as_much_as_fits_stays() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 6 * SPAN_BYTES)
    assert [evaluate(memory, number, SPANS) for number in (1, 2, 3)] == [10, 4, 4]
    assert memory.used_bytes == 6 * SPAN_BYTES
    assert sorted(set(memory.take_dropped())) == SPANS[6:]


def test_what_an_evaluation_has_not_used_makes_way() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 5 * SPAN_BYTES)
    evaluate(memory, 1, SPANS[:5])
    assert [evaluate(memory, number, SPANS[5:]) for number in (2, 3, 4)] == [5, 5, 0]
    assert sorted({*memory.take_dropped()} - {*SPANS[5:]}) == SPANS[:5]


def test_without_room_a_range_is_held_as_long_as_a_bundle_needs_it() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 0)
    assert memory.need(SPANS[0], 1)
    assert not memory.need(SPANS[0], 1), "it is being read"
    assert not memory.has(SPANS[0])
    memory.arrived(SPANS[0])
    memory.release(SPANS[0])
    assert memory.has(SPANS[0])
    memory.release(SPANS[0])
    assert not memory.has(SPANS[0])
    assert memory.take_dropped() == [SPANS[0]]
    assert memory.expect(SPANS, 1) == []


def test_a_range_that_nobody_needs_any_more_when_it_comes_is_dropped() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 0)
    memory.need(SPANS[0], 1)
    memory.release(SPANS[0])
    assert memory.take_dropped() == [], "it is being read"
    memory.arrived(SPANS[0])
    assert memory.take_dropped() == [SPANS[0]]


def test_only_what_finds_room_is_read_ahead() -> None:
    memory = ExampleMemory(EXAMPLE_BYTES, 3 * SPAN_BYTES)
    memory.need(SPANS[0], 1)
    assert memory.expect(SPANS[:5], 1) == SPANS[1:3]
    assert memory.expect(SPANS[:5], 1) == []


def test_memory_is_bounded_whatever_happens() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    memory = ExampleMemory(EXAMPLE_BYTES, 3 * SPAN_BYTES)
    there: set[Span] = set()
    reading: list[Span] = []
    needed: list[Span] = []
    for step in range(3000):
        span = chance.choice(SPANS)
        what = chance.randrange(4)
        if what == 0 and len(needed) < 5:
            if memory.need(span, step // 100):
                reading.append(span)
            needed.append(span)
        elif what == 1:
            reading += memory.expect([span], step // 100)
        elif what == 2 and reading:
            arrived = reading.pop(chance.randrange(len(reading)))
            there.add(arrived)
            memory.arrived(arrived)
        elif needed:
            memory.release(needed.pop(chance.randrange(len(needed))))
        there -= set(memory.take_dropped())
        held = there | set(reading)
        assert set(needed) <= held
        assert all(memory.has(one) == (one in there) for one in SPANS)
        assert memory.used_bytes == len(held) * SPAN_BYTES
        assert memory.used_bytes <= (3 + len(set(needed) | set(reading))) * SPAN_BYTES
