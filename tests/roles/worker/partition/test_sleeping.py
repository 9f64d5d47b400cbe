"""Threads sleep until somebody wakes them."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from adamctl.roles.worker.partition import sleeping
from adamctl.roles.worker.partition.sleeping import NAMELESS, Sleeping, Waker, unique_name


@pytest.fixture
def rested() -> Sleeping:
    return Sleeping(np.zeros(1, np.int64), unique_name("w1") if NAMELESS else "")


def test_nobody_is_woken_who_does_not_sleep(rested: Sleeping) -> None:
    rested.awaken()
    with pytest.raises(BlockingIOError):
        rested._socket.recv(1)
    rested.close()


def test_a_sleeper_is_woken_from_here_and_from_elsewhere(rested: Sleeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "SLEEP_S", 30.0)
    woken = threading.Semaphore(0)

    def sleep() -> None:
        for _ in range(2):
            rested.begin()
            rested.sleep()
            rested.end()
            woken.release()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    while not rested.sleepers[0]:
        time.sleep(0.001)
    rested.awaken()
    assert woken.acquire(timeout=20)
    if NAMELESS:
        waker = Waker(rested.sleepers, rested.name)
        while not rested.sleepers[0]:
            time.sleep(0.001)
        os.write(waker.wake.descriptor, b"\0")
        waker.close()
    else:
        while not rested.sleepers[0]:
            time.sleep(0.001)
        rested.awaken()
    assert woken.acquire(timeout=20)
    thread.join(20)
    assert not thread.is_alive() and rested.sleepers[0] == 0
    rested.close()


@pytest.mark.skipif(not NAMELESS, reason="sockets need files here")
def test_a_name_that_is_gone_is_refused(rested: Sleeping) -> None:
    rested.close()
    with pytest.raises(OSError, match="refused"):
        Waker(rested.sleepers, rested.name)
