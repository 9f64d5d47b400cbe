"""A stream gives the same frames however it is cut, and a wrong byte ends it before anything is allocated for it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ProtocolError
from adamctl.wire.codec import FrameHead
from adamctl.wire.constants import FRAME_HEADER_BYTES, TYPED_HEADER_BYTES_MAX, Opcode
from adamctl.wire.decoder import STAGING_BYTES, BodyTarget, FrameDecoder, discard_target
from tests.wire.frames import Allocations, body_of, decode_all, random_stream, raw_frame


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 8), pieces=st.integers(1, 5), data=st.data())
def test_any_split_gives_the_same_frames(seed: int, count: int, pieces: int, data: st.DataObject) -> None:
    stream, expected = random_stream(Random(seed), count)
    splits = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    frames, decoder = decode_all(stream, splits, pieces)
    assert [(frame.head.request_id, body_of(frame)) for frame in frames] == expected
    assert decoder.failure is None
    assert not decoder.mid_frame


def test_one_byte_at_a_time() -> None:
    stream, expected = random_stream(Random(1), 4, 300)
    frames, _ = decode_all(stream, list(range(len(stream))))
    assert [(frame.head.request_id, body_of(frame)) for frame in frames] == expected


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, FRAME_HEADER_BYTES + 2), change=st.integers(1, 255), cut=st.integers(0, 60))
def test_any_damaged_byte_of_the_headers_is_a_typed_error(position: int, change: int, cut: int) -> None:
    stream = bytearray(raw_frame(body=bytes(range(50))))
    stream[position] ^= change
    frames, decoder = decode_all(bytes(stream), [cut])
    assert isinstance(decoder.failure, ProtocolError)
    assert not frames
    assert not decoder._allocate.sizes  # type: ignore[attr-defined]


@settings(max_examples=200, deadline=None)
@given(garbage=st.binary(min_size=FRAME_HEADER_BYTES, max_size=400))
def test_garbage_is_a_typed_error(garbage: bytes) -> None:
    frames, decoder = decode_all(garbage)
    assert not frames
    assert isinstance(decoder.failure, ProtocolError)


def test_frames_before_the_wrong_one_are_given_out() -> None:
    frames, decoder = decode_all(raw_frame(body=b"good") + raw_frame(opcode=999) + raw_frame())
    assert [body_of(frame) for frame in frames] == [b"good"]
    assert "999" in str(decoder.failure)
    assert decoder.feed(raw_frame()) == []


def test_the_longest_typed_header_fits() -> None:
    header = bytes(TYPED_HEADER_BYTES_MAX)
    stream = raw_frame(header=header, body=b"x" * 10) * 2
    for splits in ([], [10, 40, 5000, 65536, 65600, 65646, 65700], list(range(0, len(stream), 1000))):
        frames, decoder = decode_all(stream, list(splits))
        assert decoder.failure is None
        assert [(frame.typed_header, body_of(frame)) for frame in frames] == [(header, b"x" * 10)] * 2


def test_nothing_is_allocated_before_both_checksums_were_right() -> None:
    allocations = Allocations()
    decoder = FrameDecoder(allocations)
    decoder.feed(raw_frame(body_bytes=32 << 20, header_checksum=3))
    assert "damaged" in str(decoder.failure)
    assert allocations.sizes == []


def test_a_body_is_received_straight_into_its_place() -> None:
    decoder = FrameDecoder(Allocations())
    body = Random(2).randbytes(5 * STAGING_BYTES)
    stream = raw_frame(body=body)
    decoder.feed(stream[:50])
    target = decoder.current
    assert target is not None
    window = decoder.want()
    assert window.obj is target.token.obj  # type: ignore[attr-defined]
    assert len(window) == len(body) - (50 - 39)  # the whole rest in one call
    (frame,) = decoder.feed(stream[50:])
    assert body_of(frame) == body


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), whole=st.booleans())
def test_segments_are_told_of_when_they_are_full(seed: int, whole: bool) -> None:
    random = Random(seed)
    sizes = [random.choice([0, 1, 100, STAGING_BYTES, 3 * STAGING_BYTES]) for _ in range(random.randint(1, 6))]
    body = random.randbytes(sum(sizes) or 1)
    sizes[-1] += len(body) - sum(sizes)
    memory = memoryview(bytearray(len(body)))
    stops = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    segments = [memory[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
    told: list[int] = []

    def filled(number: int) -> None:
        told.append(number)
        assert memory[: stops[number]] == body[: stops[number]]

    decoder = FrameDecoder(lambda _: BodyTarget(segments, None, filled))
    stream = raw_frame(body=body) + raw_frame(request_id=8)
    frames = []
    while stream:
        size = len(stream) if whole else random.choice([1, 7, 5000, STAGING_BYTES, len(stream)])
        frames += decoder.feed(stream[:size])
        stream = stream[size:]
    assert told == [number for number, size in enumerate(sizes) if size]
    assert [frame.head.request_id for frame in frames] == [7, 8]
    assert decoder.failure is None


def test_without_room_the_stream_waits_and_goes_on() -> None:
    room = False

    def allocate(head: FrameHead) -> BodyTarget | None:
        return Allocations()(head) if room else None

    decoder = FrameDecoder(allocate)
    assert decoder.feed(raw_frame(body=b"first") + raw_frame(body=b"second")) == []
    assert decoder.blocked
    assert decoder.resume() == []
    assert decoder.blocked
    room = True
    assert [body_of(frame) for frame in decoder.resume()] == [b"first", b"second"]
    assert not decoder.blocked


def test_an_allocator_may_refuse_a_frame() -> None:
    def allocate(head: FrameHead) -> BodyTarget | None:
        raise ProtocolError("not from you")

    decoder = FrameDecoder(allocate)
    assert decoder.feed(raw_frame(body=b"x")) == []
    assert str(decoder.failure) == "not from you"


def test_a_body_nobody_wants_any_more_goes_nowhere() -> None:
    decoder = FrameDecoder(Allocations())
    stream = raw_frame(body=b"a" * 200_000) + raw_frame(body=b"next")
    decoder.feed(stream[:70_000])
    memory = decoder.current.token  # type: ignore[union-attr]
    written = bytes(memory).count(b"a")
    decoder.discard_body()
    frames = decoder.feed(stream[70_000:])
    assert bytes(memory).count(b"a") == written
    assert len(frames) == 2
    assert body_of(frames[1]) == b"next"


def test_a_discarded_body_costs_little() -> None:
    target = discard_target(32 << 20)
    assert sum(map(len, target.segments)) == 32 << 20
    assert len({id(segment.obj) for segment in target.segments}) == 1
    assert len(target.segments[0]) == 64 << 10


def test_a_peer_that_has_said_nothing_sensible_gets_a_small_buffer() -> None:
    decoder = FrameDecoder(Allocations())
    assert len(decoder.want()) <= 4096
    decoder.feed(raw_frame(opcode=Opcode.STATUS, header=b"\x90"))
    assert len(decoder.want()) == STAGING_BYTES


def test_the_decoder_always_wants_at_least_a_byte() -> None:
    stream, _ = random_stream(Random(3), 20, 40_000)
    decoder = FrameDecoder(Allocations(3))
    random = Random(4)
    offset = 0
    while offset < len(stream):
        window = decoder.want()
        assert len(window) > 0
        count = min(len(window), random.choice([1, 17, 4096, 1 << 20]), len(stream) - offset)
        window[:count] = stream[offset : offset + count]
        decoder.received(count)
        offset += count
    assert decoder.failure is None


def fuzz(seed: int, frames: int) -> None:
    """Feeds damaged, cut and made-up frames; each stream ends in a typed error or goes on, never otherwise."""
    random = Random(seed)
    done = 0
    while done < frames:
        decoder = FrameDecoder(Allocations())
        for _ in range(random.randrange(1, 20)):
            done += 1
            frame = bytearray(
                raw_frame(
                    opcode=random.choice([*Opcode, random.randrange(1 << 16)]),
                    flags=random.choice([0, 0, 1, 3, 4, random.randrange(256)]),
                    header=random.randbytes(random.randrange(40)),
                    body=random.randbytes(random.choice([0, 0, 5, 300])),
                )
            )
            kind = random.random()
            if kind < 0.3:
                frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
            elif kind < 0.4:
                del frame[random.randrange(len(frame)) :]
            elif kind < 0.5:
                frame = bytearray(random.randbytes(random.randrange(1, 80)))
            for found in decoder.feed(bytes(frame)):
                decode_or_refuse(found.head, found.typed_header, seed)
            if decoder.failure is not None:
                break


def decode_or_refuse(head: FrameHead, typed_header: bytes, seed: int) -> None:
    from adamctl.wire.codec import decode_message

    try:
        decode_message(head.opcode, head.flags, typed_header)
    except ProtocolError:
        pass
    except Exception as error:
        raise AssertionError(f"seed {seed}: {head} {typed_header!r}") from error


def test_fuzzed_frames() -> None:
    fuzz(seed=1, frames=5_000)


@pytest.mark.slow
def test_a_million_fuzzed_frames() -> None:
    for seed in range(100, 200):
        fuzz(seed, 10_000)
