"""One thread for blocking work: in order, errors come back, and its end waits for what was submitted."""

from __future__ import annotations

import threading

import pytest

from adamctl.roles.ps.store.writer_thread import WriterThread


def test_work_is_done_in_order_by_one_thread_that_holds_up_nobodys_end() -> None:
    thread = WriterThread("store")
    seen: list[tuple[int, bool]] = []

    def note(number: int) -> int:
        seen.append((number, threading.current_thread().daemon))
        return number

    futures = [thread.submit(note, number) for number in range(5)]
    thread.shutdown()
    assert [future.result(0) for future in futures] == [0, 1, 2, 3, 4]
    assert seen == [(number, True) for number in range(5)]


def test_an_error_comes_back_to_who_asked_and_the_next_work_is_done() -> None:
    thread = WriterThread("store")

    def fail() -> None:
        raise OSError("no disk")

    failed, done = thread.submit(fail), thread.submit(int, "7")
    thread.shutdown()
    with pytest.raises(OSError, match="no disk"):
        failed.result(0)
    assert done.result(0) == 7


def test_one_that_was_given_no_work_ends_at_once() -> None:
    WriterThread("store").shutdown()
