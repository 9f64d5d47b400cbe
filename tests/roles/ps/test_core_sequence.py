"""The memory that makes every push happen at most once."""

from __future__ import annotations

import msgspec

from adamctl.roles.ps.core_sequence import REFUSED_MAX, Client, ClientMemory, MemoryRecord, Verdict


def test_only_the_next_number_is_taken() -> None:
    client = Client(("w", 1), done=4)
    verdicts = {sequence: client.judge(sequence) for sequence in (0, 1, 4, 5, 6)}
    assert verdicts == {0: Verdict.GAP, 1: Verdict.DONE, 4: Verdict.DONE, 5: Verdict.NEXT, 6: Verdict.GAP}
    client.accepted = 5
    assert client.judge(5) is Verdict.QUEUED


def test_refused_numbers_are_remembered_up_to_a_bound() -> None:
    client = Client(("w", 1))
    for sequence in range(1, REFUSED_MAX + 10):
        client.refuse(sequence, 36)
    assert client.refused is not None and len(client.refused) == REFUSED_MAX
    assert REFUSED_MAX + 9 in client.refused and 1 not in client.refused


def accept(memory: ClientMemory, key: tuple[str, int], sequence: int = 1) -> None:
    client = memory.find(key)
    assert client is not None
    memory.accept(client, sequence)
    client.done = sequence


def test_the_least_recently_used_client_is_evicted_but_never_one_with_queued_updates() -> None:
    memory = ClientMemory(clients_max=2)
    busy = memory.find(("w", 1))
    assert busy is not None
    memory.accept(busy, 1)  # queued, not done
    accept(memory, ("w", 2))
    accept(memory, ("w", 3))
    assert memory.find(("w", 1)) is busy
    assert memory.find(("w", 2)) is None
    busy.done = 1
    accept(memory, ("w", 3), 2)
    accept(memory, ("w", 4))
    assert memory.find(("w", 1)) is None and memory.find(("w", 3)) is not None


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
    client.refuse(1, 36)
    memory.accept(client, 2)
    encoded = msgspec.msgpack.encode(memory.record())
    restored = ClientMemory.restored(msgspec.msgpack.decode(encoded, type=MemoryRecord))
    again = restored.find(("w", 2))
    assert again is not None and (again.accepted, again.done, again.refused) == (1, 1, {1: 36})
    assert restored.find(("gone", 1)) is None
    assert again.judge(2) is Verdict.NEXT


def test_clients_without_an_incarnation_are_clients_too() -> None:
    assert ClientMemory().find(("w", 0)) is not None
