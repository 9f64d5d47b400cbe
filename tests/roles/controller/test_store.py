"""The controller's store: what was appended is there again, a torn tail is cut, damage is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError, RunFailedError
from adamctl.roles.controller.core.instructions import Append, SaveVote
from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, Member, PaxosSnapshot, Vote
from adamctl.roles.controller.log_format import FILE_HEADER, encode_record, first_checksum
from adamctl.roles.controller.store import LogStore

VOTE = Vote("a", 7, 9, Ballot(3, 7), (Member("a", 7, "tcp://h:1"),))


def entry(slot: int, value: bytes = b"a value of the log") -> Entry:
    return Entry(slot, Ballot(3, 7), value)


def snapshot(slot: int) -> PaxosSnapshot:
    return PaxosSnapshot(slot, Ballot(3, 7), VOTE.members, b"state")


def write(folder: Path, batches: int) -> list[Entry]:
    store = LogStore(folder)
    store.write_vote(VOTE)
    written = []
    for number in range(batches):
        batch = [entry(2 * number + 1), entry(2 * number + 2)]
        store.append(batch)
        written += batch
    store.close()
    return written


def read(folder: Path) -> tuple[Entry, ...]:
    store = LogStore(folder)
    store.close()
    return store.entries


def log_of(folder: Path) -> Path:
    return folder / "log-00000001"


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    written = write(tmp_path / "new" / "folder", 3)
    assert list(read(tmp_path / "new" / "folder")) == written


def test_i10_a_log_cut_at_any_byte_opens_as_a_prefix_and_goes_on(tmp_path: Path) -> None:
    written = write(tmp_path / "whole", 3)
    data = log_of(tmp_path / "whole").read_bytes()
    lengths = set()
    for size in range(FILE_HEADER.size, len(data)):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        os.truncate(log_of(folder), size)
        store = LogStore(folder)
        assert list(store.entries) == written[: len(store.entries)] and len(store.entries) % 2 == 0
        lengths.add(len(store.entries))
        store.append([entry(len(store.entries) + 1, b"after")])
        store.close()
        assert len(read(folder)) == len(store.entries) + 1
    assert lengths == {0, 2, 4}


def test_i10_zeros_where_the_last_batch_was_to_be_are_a_torn_tail(tmp_path: Path) -> None:
    written = write(tmp_path, 2)
    with log_of(tmp_path).open("ab") as file:
        file.write(bytes(4096))
    store = LogStore(tmp_path)
    store.close()
    assert list(store.entries) == written and store.cut_bytes == 4096


def test_i10_any_flipped_bit_is_found(tmp_path: Path) -> None:
    write(tmp_path, 2)
    data = bytearray(log_of(tmp_path).read_bytes())
    for position in range(len(data)):
        for bit in (position % 8,):
            data[position] ^= 1 << bit
            log_of(tmp_path).write_bytes(data)
            with pytest.raises(DamagedDataError, match=r"log-00000001 is damaged.*move that folder away"):
                LogStore(tmp_path)
            data[position] ^= 1 << bit


def test_a_record_taken_out_of_the_middle_is_found(tmp_path: Path) -> None:
    write(tmp_path, 1)
    one = log_of(tmp_path).stat().st_size
    shutil.rmtree(tmp_path)
    write(tmp_path, 3)
    data = log_of(tmp_path).read_bytes()
    two = FILE_HEADER.size + 2 * (one - FILE_HEADER.size)
    log_of(tmp_path).write_bytes(data[:one] + data[two:])
    with pytest.raises(DamagedDataError):
        LogStore(tmp_path)


def test_a_snapshot_replaces_the_log_before_it_and_keeps_what_is_only_accepted(tmp_path: Path) -> None:
    store = LogStore(tmp_path, snapshot_after_bytes=530)
    store.write_vote(VOTE)
    for slot in range(1, 40):
        store.append([entry(slot)])
        if store.wants_snapshot:
            store.write_snapshot(snapshot(slot - 1), [entry(slot)])
    store.close()
    again = LogStore(tmp_path)
    again.close()
    assert again.snapshot is not None and 0 < len(again.entries) < 39
    assert [one.slot for one in again.entries] == list(range(again.snapshot.slot + 1, 40))
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["lock", "log", "snapshot", "vote"]


def test_a_log_is_as_long_as_the_snapshot_before_the_next_one_is_due(tmp_path: Path) -> None:
    """Else a large state would be written again and again."""
    store = LogStore(tmp_path, snapshot_after_bytes=1000)
    store.write_vote(VOTE)
    store.append([entry(1, bytes(1001))])
    assert store.wants_snapshot
    store.write_snapshot(PaxosSnapshot(1, Ballot(3, 7), VOTE.members, bytes(5000)))
    store.append([entry(2, bytes(4000))])
    assert not store.wants_snapshot
    store.close()
    store = LogStore(tmp_path, snapshot_after_bytes=1000)
    assert not store.wants_snapshot, "nor by a start"
    store.append([entry(3, bytes(2000))])
    assert store.wants_snapshot
    store.close()


def test_a_crash_between_new_log_and_snapshot_keeps_the_old_ones(tmp_path: Path) -> None:
    written = write(tmp_path, 2)
    shutil.copy(log_of(tmp_path), tmp_path / "log-00000002")
    (tmp_path / "new-snapshot-00000002").write_bytes(b"half")
    assert list(read(tmp_path)) == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "log-00000001", "vote"]


@pytest.mark.parametrize("name", ["log-00000002", "snapshot-00000002"])
def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    store = LogStore(tmp_path)
    store.write_vote(VOTE)
    store.append([entry(1)])
    store.write_snapshot(snapshot(1))
    store.close()
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-1] if "snapshot" in name else data[:-4])
    with pytest.raises(DamagedDataError):
        LogStore(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DamagedDataError):
        LogStore(tmp_path)


def test_two_controllers_do_not_share_a_folder(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"process {os.getpid()}\) uses .*another --dir"):
        LogStore(tmp_path)
    store.close()
    LogStore(tmp_path).close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/inside"):
        LogStore(tmp_path / "file" / "inside")


def test_after_a_failed_write_nothing_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore(tmp_path)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(RunFailedError, match="No space left"):
        store.append([entry(1)])
    monkeypatch.undo()
    with pytest.raises(RunFailedError, match="start the controller again"):
        store.append([entry(1)])
    store.close()


# --- votes ----------------------------------------------------------------------------------------------------------


def test_i9_the_last_vote_is_there_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert store.vote is None
    first, second = VOTE, Vote("a", 7, 9, Ballot(4, 7), VOTE.members)
    store.persist([SaveVote(first), Append(entry(1)), Append(entry(2)), SaveVote(first), SaveVote(second)])
    store.close()
    again = LogStore(tmp_path)
    again.close()
    assert again.vote == second and [one.slot for one in again.entries] == [1, 2]


def test_i9_any_flipped_bit_of_a_vote_is_found_and_it_says_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path, 1)
    data = bytearray((tmp_path / "vote").read_bytes())
    for position in range(len(data)):
        data[position] ^= 1 << position % 8
        (tmp_path / "vote").write_bytes(data)
        with pytest.raises(DamagedDataError, match=r"vote is damaged.*adamctl controller replace NAME --with"):
            LogStore(tmp_path)
        data[position] ^= 1 << position % 8


def test_a_vote_whose_text_is_not_utf_8_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 1)
    encoded = msgspec.msgpack.encode(VOTE).replace(b"tcp://h:1", b"tcp://\xff:1")
    record, _ = encode_record(encoded, first_checksum(1))
    (tmp_path / "vote").write_bytes((tmp_path / "vote").read_bytes()[: FILE_HEADER.size] + record)
    with pytest.raises(DamagedDataError, match=r"vote is damaged.*'utf-8' codec"):
        LogStore(tmp_path)


def test_i9_a_log_without_a_vote_is_refused_and_so_is_a_vote_without_its_log(tmp_path: Path) -> None:
    write(tmp_path, 1)
    vote = (tmp_path / "vote").read_bytes()
    (tmp_path / "vote").unlink()
    with pytest.raises(DamagedDataError, match="vote is damaged: the file is missing"):
        LogStore(tmp_path)
    (tmp_path / "vote").write_bytes(vote)
    log_of(tmp_path).unlink()
    with pytest.raises(DamagedDataError, match="log-00000001 is damaged: the file is missing"):
        LogStore(tmp_path)


def test_a_crash_at_the_very_first_start_leaves_a_new_folder(tmp_path: Path) -> None:
    LogStore(tmp_path).close()  # its log is there, its vote is not
    (tmp_path / "new-vote").write_bytes(b"half")
    store = LogStore(tmp_path)
    assert store.vote is None and store.entries == ()
    store.close()


def test_an_entry_accepted_anew_follows_the_one_it_replaces(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.persist([SaveVote(VOTE), Append(entry(1)), Append(entry(2)), Append(entry(2, b"another"))])
    store.close()
    again = LogStore(tmp_path)
    assert [one.value for one in again.entries][1:] == [b"a value of the log", b"another"]
    again.append([entry(4)])  # slot 3 is missing
    again.close()
    with pytest.raises(DamagedDataError, match="expected slot 3, found 4"):
        LogStore(tmp_path)


def test_the_format_before_votes_is_named(tmp_path: Path) -> None:
    log_of(tmp_path).write_bytes(b"ADMCLOG1" + bytes(8))
    with pytest.raises(ConfigurationError, match=r"written by an earlier adamctl.*move it away"):
        LogStore(tmp_path)
