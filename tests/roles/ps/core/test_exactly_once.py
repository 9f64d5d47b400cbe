"""The memory that makes every push happen at most once."""

from __future__ import annotations

import random

import msgspec

from adamctl.config.records import RetiredRecord
from adamctl.roles.ps.core.exactly_once import (
    CLIENTS_MAX,
    REFUSED_MAX,
    Client,
    ClientMemory,
    MemoryChange,
    MemoryRecord,
    Verdict,
)


def test_only_the_next_number_is_taken() -> None:
    client = Client(("w", 1), done=4)
    verdicts = {sequence: client.judge(sequence) for sequence in (0, 1, 4, 5, 6)}
    assert verdicts == {0: Verdict.GAP, 1: Verdict.DONE, 4: Verdict.DONE, 5: Verdict.NEXT, 6: Verdict.GAP}
    client.accepted = 5
    assert client.judge(5) is Verdict.QUEUED


def test_refused_numbers_are_remembered_up_to_a_bound() -> None:
    client = Client(("w", 1))
    for sequence in range(1, REFUSED_MAX + 10):
        client.settle(sequence, 36, 0)
    assert client.refused is not None and len(client.refused) == REFUSED_MAX
    assert REFUSED_MAX + 9 in client.refused and 1 not in client.refused


def accept(memory: ClientMemory, key: tuple[str, int], sequence: int = 1, counter: int = 0, code: int = 0) -> None:
    client = memory.find(key)
    assert client is not None
    memory.accept(client, sequence)
    memory.settle(client, sequence, code, counter)


def test_the_least_recently_used_client_is_evicted_but_never_one_with_queued_updates() -> None:
    memory = ClientMemory(clients_max=2)
    busy = memory.find(("w", 1))
    assert busy is not None
    memory.accept(busy, 1)  # queued, not done
    accept(memory, ("w", 2))
    accept(memory, ("w", 3))
    assert memory.find(("w", 1)) is busy
    assert memory.find(("w", 2)) is None
    memory.settle(busy, 1, 0, 0)
    accept(memory, ("w", 3), 2)
    accept(memory, ("w", 4))
    assert memory.find(("w", 1)) is None and memory.find(("w", 3)) is not None


def encoded(memory: ClientMemory) -> bytes:
    return msgspec.msgpack.encode(memory.record())


def decoded(data: bytes) -> ClientMemory:
    return ClientMemory.restored(msgspec.msgpack.decode(data, type=MemoryRecord))


def test_after_a_takeover_the_oldest_client_that_lives_is_not_the_first_to_go() -> None:
    """Who was used last is part of what is recorded."""
    memory = ClientMemory()
    accept(memory, ("oldest", 1))
    for incarnation in range(2, CLIENTS_MAX + 1):
        accept(memory, ("dead", incarnation))
    accept(memory, ("oldest", 1), 2)
    taken_over = decoded(encoded(memory))
    accept(taken_over, ("new", CLIENTS_MAX + 1))
    assert taken_over.find(("oldest", 1)) is not None
    assert taken_over.find(("dead", 2)) is None and taken_over.find(("dead", 3)) is not None


def test_a_mark_that_is_forgotten_keeps_every_older_stranger_out() -> None:
    memory = ClientMemory(clients_max=1, marks_max=2)
    for incarnation in range(1, 8):
        accept(memory, ("w", incarnation))
    assert all(memory.find(("w", incarnation)) is None for incarnation in range(1, 7))
    assert memory.find(("w", 8)) is not None


def test_a_snapshot_holds_what_is_done_and_not_what_is_queued() -> None:
    memory = ClientMemory(clients_max=1)
    accept(memory, ("gone", 1))
    accept(memory, ("w", 2))
    client = memory.find(("w", 2))
    assert client is not None
    accept(memory, ("w", 2), 2, code=36)
    memory.accept(client, 3)
    restored = decoded(encoded(memory))
    again = restored.find(("w", 2))
    assert again is not None and (again.accepted, again.done, again.refused) == (2, 2, {2: 36})
    assert restored.find(("gone", 1)) is None
    assert again.judge(3) is Verdict.NEXT


def test_clients_without_an_incarnation_are_clients_too() -> None:
    assert ClientMemory().find(("w", 0)) is not None


def test_records_of_before_are_read_with_nobody_retired() -> None:
    old = msgspec.msgpack.encode(((("w", 3, 7, {}),), (("gone", 1),), 0, 5))
    memory = decoded(old)
    assert (memory.sequence(("w", 3)), memory.find(("gone", 1)), memory.step) == (7, None, 5)
    assert memory.retired == RetiredRecord() and memory.find(("w", 2)) is not None


# --- what has changed -------------------------------------------------------------------------------------------------


def shipped(memory: MemoryChange | None) -> MemoryChange:
    assert memory is not None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=MemoryChange)


def test_a_copy_that_is_told_what_has_changed_has_the_same_memory_whatever_it_had_since() -> None:
    """Clients come back, are refused, evicted, and their marks forgotten; the copy is any number of versions behind."""
    rng = random.Random(17)
    for _ in range(60):
        clients_max, marks_max = rng.randint(1, 6), rng.randint(1, 6)
        memory = ClientMemory(clients_max, marks_max)
        numbers = {("w", incarnation): 1 for incarnation in rng.sample(range(1, 90), rng.randint(0, clients_max))}
        for key in numbers:
            accept(memory, key)
        memory.restart()
        history = [encoded(memory)]
        for counter in range(1, 30):
            for _ in range(rng.randint(0, 3)):
                key = ("w", rng.randint(1, 12))
                if memory.find(key) is not None:
                    numbers[key] = numbers.get(key, 0) + 1
                    accept(memory, key, numbers[key], counter, rng.choice((0, 0, 36)))
            if rng.random() < 0.1:
                floor = rng.randint(1, 4)
                memory.retire(RetiredRecord(floor, tuple(range(2, floor, 2))), counter)
            history.append(encoded(memory))
            since, held = sorted((rng.randint(0, counter - 1), rng.randint(0, counter - 1)))
            copy = decoded(history[held])
            change = memory.change(since)
            if change is not None:
                copy.take(shipped(change))
                assert encoded(copy) == history[counter]


def test_what_has_changed_is_small_however_many_clients_there_are() -> None:
    memory = ClientMemory()
    for incarnation in range(1, CLIENTS_MAX + 100):
        accept(memory, ("w", incarnation), 1, incarnation)
    accept(memory, ("w", CLIENTS_MAX), 2, 5000)
    change = shipped(memory.change(4999))
    assert [one.incarnation for one in change.clients] == [CLIENTS_MAX] and not change.evicted
    assert len(msgspec.msgpack.encode(change)) < len(encoded(memory)) // 100


def test_a_client_of_before_the_job_began_keeps_nobody_out_when_it_is_forgotten() -> None:
    """It is of a checkpoint, perhaps of another cluster's, which had given out more incarnations than this one has."""
    memory = ClientMemory(clients_max=2, marks_max=1)
    for incarnation in (77, 78):
        accept(memory, ("w", incarnation))
    memory.restart()
    for incarnation in (4, 5, 6):  # one takes each place, and one the mark's
        accept(memory, ("w", incarnation), 1, incarnation)
    assert list(memory.clients) == [("w", 5), ("w", 6)]
    assert memory.find(("w", 11)) is not None and memory.find(("w", 4)) is None
    accept(memory, ("w", 12), 1, 7)  # 4 is forgotten, which was a client of this cluster
    assert memory.find(("w", 3)) is None and memory.find(("w", 11)) is not None


# --- the end of incarnations ------------------------------------------------------------------------------------------


def test_retired_incarnations_are_forgotten_with_their_marks_and_may_not_come_back() -> None:
    memory = ClientMemory(clients_max=4)
    for incarnation in range(1, 7):
        accept(memory, ("w", incarnation))
    assert memory.retire(RetiredRecord(5, (4,)), 9)
    assert list(memory.clients) == [("w", 4), ("w", 6)] and not memory.record().evicted
    assert all(memory.find(("w", incarnation)) is None for incarnation in (1, 2, 3, 5))
    assert memory.find(("a stranger", 4)) is not None  # who lives is welcome, however old
    assert memory.change(8) is None and memory.change(9) is not None
    again = decoded(encoded(memory))
    assert again.find(("w", 3)) is None and again.find(("w", 4)) is not None


def test_a_client_with_something_queued_is_not_retired_and_older_news_bring_nobody_back() -> None:
    memory = ClientMemory()
    for incarnation in (1, 2):
        accept(memory, ("w", incarnation))
    memory.accept(memory.clients["w", 1], 2)
    record = RetiredRecord(2)
    assert memory.retire(record, 1)
    assert list(memory.clients) == [("w", 1)]
    memory.settle(memory.clients["w", 1], 2, 0, 2)
    assert memory.retire(record, 2) and not memory.clients
    for older in (RetiredRecord(1), RetiredRecord(3, (2,))):
        assert not memory.retire(older, 3) and memory.find(("w", 2)) is None


def test_the_last_commit_of_vectors_is_part_of_the_memory_until_another_job_begins() -> None:
    memory = ClientMemory()
    memory.commit = 7
    assert ClientMemory.restored(memory.record()).commit == 7
    copy, change = ClientMemory(), memory.change(0)
    assert change is not None
    copy.take(change)
    assert copy.commit == 7
    copy.restart()
    assert copy.commit == 0
