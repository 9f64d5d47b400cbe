"""A native function that can stop where it would have to wait, and go on there later (partitions; Adam 3.2.3).

The step of a partitioned model needs values that other workers compute. The function is cut into segments: each begins
when certain words have reached the number of the present flight, and returns to its caller if they have not. Words lie
in memory that other processes or threads write. A word holds the number of the last flight whose values have come, so
nothing is reset between flights, and values that come early are kept.

Whoever writes a word wakes those who sleep: a reader counts itself among the sleepers and then looks again, a writer
writes the word and then looks at that count. Both are sequentially consistent, so one of them sees the other.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.native import REFUSED, Call, can_compile
from adamctl.kernels.native_function import Instructions, compile_function, word_place

Words: TypeAlias = NDArray[np.int64]
"""One int64 on its own cache line, [1], shared with other threads or processes."""

Advance: TypeAlias = Callable[[int, int], int]
"""Takes the address of a row and the segment to begin with.

Returns the segment whose words have not come, the number of segments when all are done, or, below 0, FAILED minus the
status of the kernel that failed (so REFUSED is itself).
"""

FLIGHT, SPINS = 0, 1
"""Words of a row: the number of the flight; how many times to look at a word again before giving up."""
FIRST_FREE_WORD = 2

FAILED = 2 * REFUSED


class Wake(NamedTuple):
    """Whom to wake.

    Attributes:
        sleepers: how many threads of the reader sleep, [1], in shared memory.
        descriptor: of a pipe or socket that takes a byte without blocking.
    """

    sleepers: Words
    descriptor: int


class Post(NamedTuple):
    """Writes the flight's number, plus `ahead`, into a word, after all that was computed before; wakes its readers."""

    word: Words
    wakes: tuple[Wake, ...] = ()
    ahead: int = 0


class Segment(NamedTuple):
    """`calls` to make as soon as all of `words` have reached the number of the flight."""

    words: tuple[Words, ...]
    calls: Sequence[Call | Post]


def compile_segments(segments: Sequence[Segment], stand_ins: Mapping[int, NDArray[Any]] | None = None) -> Advance:
    """Returns a function that makes the calls of all segments in order, for one row.

    Args:
        stand_ins: word of the row, from FIRST_FREE_WORD on -> argument of the calls that is replaced by the array whose
            address the word holds.

    Raises:
        TypeError: an argument does not fit its kernel.
        RuntimeError: there is no compiler (`adamctl.kernels.native.can_compile`).
    """
    source = Instructions(stand_ins or {}, "entry")
    source.lines += [
        f"%flight = load i64, ptr {_place(source, FLIGHT)}",
        f"%spins = load i64, ptr {_place(source, SPINS)}",
    ]
    cases = " ".join(f"i64 {number}, label %segment{number}" for number in range(len(segments)))
    source.lines += [f"switch i64 %segment, label %done [{cases}]"]
    for number, segment in enumerate(segments):
        if number:
            source.lines.append(f"br label %segment{number}")
        source.lines.append(f"segment{number}:")
        source.block = f"segment{number}"
        for word in segment.words:
            _wait(source, word, number)
        for call in segment.calls:
            if isinstance(call, Post):
                _post(source, call)
            else:
                source.add(call)
    text = [
        f"declare void @{PAUSE[0]}({PAUSE[1]})" if PAUSE else "",
        "define i32 @advance(i64 %table, i64 %segment) {",
        "entry:",
        "%words = inttoptr i64 %table to ptr",
        *source.lines,
        "br label %done",
        "done:",
        f"ret i32 {len(segments)}",
        *_failed(source),
        "}",
    ]
    return compile_function("advance", "\n".join([*text, ""]), source.held)


def _place(source: Instructions, word: int) -> str:
    place = source.name("place")
    source.lines.append(f"{place} = {word_place(word)}")
    return place


def _wait(source: Instructions, word: Words, segment: int) -> None:
    """Looks at a word up to `%spins` times more; ends the function if it has not reached the flight's number."""
    again, away, there, found, good, left, next_left, more = (
        source.name(what) for what in ("again", "away", "there", "found", "good", "left", "next", "more")
    )
    pause = source.name("pause")
    source.held.append(word)
    source.lines += [
        f"br label {again}",
        f"{again[1:]}:",
        f"{left} = phi i64 [%spins, %{source.block}], [{next_left}, {pause}]",
        f"{found} = load atomic i64, ptr {_address(word)} seq_cst, align 8",
        f"{good} = icmp sge i64 {found}, %flight",
        f"br i1 {good}, label {there}, label {away}check",
        f"{away[1:]}check:",
        f"{next_left} = sub i64 {left}, 1",
        f"{more} = icmp sgt i64 {left}, 0",
        f"br i1 {more}, label {pause}, label {away}",
        f"{pause[1:]}:",
        f"call void @{PAUSE[0]}({PAUSE[2]})" if PAUSE else "",
        f"br label {again}",
        f"{away[1:]}:",
        f"ret i32 {segment}",
        f"{there[1:]}:",
    ]
    source.block = there[1:]


def _post(source: Instructions, post: Post) -> None:
    source.held.append(post)
    value = source.name("value")
    source.lines += [
        f"{value} = add i64 %flight, {post.ahead}",
        f"store atomic i64 {value}, ptr {_address(post.word)} seq_cst, align 8",
    ]
    for wake in post.wakes:
        asleep, is_asleep, write, on = (source.name(what) for what in ("asleep", "is", "write", "on"))
        source.lines += [
            f"{asleep} = load atomic i64, ptr {_address(wake.sleepers)} seq_cst, align 8",
            f"{is_asleep} = icmp sgt i64 {asleep}, 0",
            f"br i1 {is_asleep}, label {write}, label {on}",
            f"{write[1:]}:",
            f"call i64 inttoptr (i64 {_write()} to ptr)(i32 {wake.descriptor}, ptr {_address(post.word)}, i64 1)",
            f"br label {on}",
            f"{on[1:]}:",
        ]
        source.block = on[1:]


def _failed(source: Instructions) -> list[str]:
    lines = source.failed()
    if lines:
        lines[-1:] = [f"%failure = sub i32 {FAILED}, %code", "ret i32 %failure"]
    return lines


def _address(word: NDArray[np.int64]) -> str:
    return f"inttoptr (i64 {word.__array_interface__['data'][0]} to ptr)"


@cache
def _write() -> int:
    """Returns the address of the C library's `write`."""
    address = ctypes.cast(ctypes.CDLL(None).write, ctypes.c_void_p).value
    assert address is not None
    return address


def _pause() -> tuple[str, str, str] | None:
    """Returns the instruction that makes a spinning thread leave the core to its twin: name, types, arguments."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return "llvm.x86.sse2.pause", "", ""
    return ("llvm.aarch64.hint", "i32", "i32 1") if machine in ("arm64", "aarch64") else None


PAUSE = _pause()


@cache
def _counting() -> Advance:
    text = (
        "define i32 @count(i64 %word, i64 %change) {\nentry:\n%at = inttoptr i64 %word to ptr\n"
        "%before = atomicrmw add ptr %at, i64 %change seq_cst, align 8\nret i32 0\n}\n"
    )
    return compile_function("count", text, ())


def count_sleeper(sleepers: Words, change: int) -> None:
    """Counts this thread among the sleepers (1) or no more (-1); what it reads afterwards is as new as that.

    Without a compiler a wake may be missed. `sleepers` is of this process's threads: no other one writes it.
    """
    if can_compile():
        _counting()(sleepers.__array_interface__["data"][0], change)
        return
    with _BY_PYTHON:
        sleepers[0] += change


_BY_PYTHON = threading.Lock()
"""Held while a count is changed that no native function changes."""
