"""The log on disk: what was written is there again; full disks, failures and foreign folders end as they should."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import lmdb
import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError, RunFailedError
from adamctl.roles.ps.store.lmdb_log import NEW_LOG_NAME, LogStore, NoSpaceError, UnconfirmedError, Writing
from adamctl.roles.ps.store.record import Holding, ShardState
from tests.roles.ps.store_images import JOB, contents, fill, state, writing


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert store.found == () and store.next_sequence == 1
    described, arrays = state(3, 5)
    holding = Holding(JOB, {0: (1, 1)})
    sizes = store.write([Writing(1, holding), Writing(2, described, arrays)], 1)
    store.close()
    store = LogStore(tmp_path)
    assert [record.description for record in store.found] == [holding, described]
    assert [record.size_bytes for record in store.found] == sizes
    for found, expected in zip(store.read(2), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert store.next_sequence == 3
    store.close()


def test_a_log_is_its_owners_alone_and_one_that_was_not_is_tightened(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        modes = []
        for _ in range(2):
            store = LogStore(tmp_path)
            modes.append(store.path.stat().st_mode & 0o777)
            store.shrink()
            modes.append(store.path.stat().st_mode & 0o777)
            store.close()
            store.path.chmod(0o644)  # as earlier versions left it
        assert modes == [0o600] * 4
    finally:
        os.umask(before)


@pytest.mark.parametrize("seed", range(3))
def test_many_groups_with_removals_and_restarts(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    expected: dict[int, int] = {}
    for _ in range(3):
        store = LogStore(tmp_path)
        assert contents(store) == expected
        store.write([], store.next_sequence)
        expected = fill(store, chance, 12)
        store.close()
    store = LogStore(tmp_path)
    assert contents(store) == expected
    assert len(store.found) < 60
    store.close()


def test_the_arrays_are_free_before_the_disk_is_waited_for(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    described, arrays = state(0, 1)

    def taken() -> None:
        for array in arrays:
            array.fill(9)

    store.write([Writing(1, described, arrays)], 1, taken)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {0: 1}
    store.close()


def test_a_copied_record_says_the_same_under_its_new_number(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.write([writing(1, 0, 4), writing(2, 1, 5)], 1)
    store.write([Writing(3, copy_of=1)], 2)
    store.close()
    store = LogStore(tmp_path)
    assert [record.sequence for record in store.found] == [2, 3]
    assert contents(store) == {0: 4, 1: 5}
    store.close()


def test_all_records_may_be_removed(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.write([writing(1, 0, 4)], 1)
    store.write([], 2)
    store.close()
    store = LogStore(tmp_path)
    assert store.found == () and store.next_sequence == 2
    store.write([writing(2, 0, 6)], 2)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {0: 6}
    store.close()


def test_a_copy_without_free_pages_is_smaller_and_holds_the_same(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.write([writing(n + 1, n, 1, 100_000) for n in range(10)], 1)
    store.write([], 10)
    large = store.file_bytes
    store.shrink()
    assert store.file_bytes < large / 2
    store.write([writing(11, 3, 2)], 10)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {9: 1, 3: 2}
    store.close()


def test_no_copy_is_begun_that_the_disk_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore(tmp_path)
    store.write([writing(n + 1, n, 1, 100_000) for n in range(10)], 1)
    before = store.file_bytes
    with monkeypatch.context() as patched:
        patched.setattr(LogStore, "_free_bytes", 3 << 20)
        with pytest.raises(NoSpaceError, match="expected 4 MiB for a copy of the log; free are 3"):
            store.shrink(4 << 20)
    assert store.file_bytes == before and not (tmp_path / NEW_LOG_NAME).exists()
    store.close()


def test_it_is_closed_after_what_a_thread_is_reading(tmp_path: Path) -> None:
    """The thread is in the file's mapped memory; what it asks for later it is refused."""
    store = LogStore(tmp_path)
    store.write([writing(n + 1, n, 1, 1_000_000) for n in range(20)], 1)
    read: list[int] = []
    refused = threading.Event()

    def many() -> None:
        try:
            while True:
                read.append(len(store.read_all(range(1, 21))))
        except RunFailedError:
            refused.set()

    thread = threading.Thread(target=many)
    thread.start()
    while not read:
        time.sleep(0.001)
    store.close()
    thread.join(60)
    assert refused.is_set() and set(read) == {20}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    with pytest.raises(ConfigurationError, match="another parameter server"):
        LogStore(tmp_path)
    store.close()
    LogStore(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="--store"):
        LogStore(tmp_path / "file" / "store")


def test_without_space_nothing_of_the_group_is_there_and_smaller_ones_go_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path, map_bytes=1 << 20)
    store.write([writing(1, 0, 1)], 1)
    with pytest.raises(NoSpaceError):
        store.write([writing(2 + n, n, 9, 20_000) for n in range(10)], 1)
    store.write([writing(2, 0, 2)], 2)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {0: 2}
    store.close()


def test_a_limit_on_the_length_of_files_is_a_full_disk(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.write([writing(1, 0, 1, 20_000)], 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(NoSpaceError, match="File too large"):
            store.write([writing(2, 0, 2, 20_000)], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.write([writing(2, 0, 3, 20_000)], 2)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {0: 3}
    store.close()


def test_without_space_to_confirm_it_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore(tmp_path)

    def fail() -> None:
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_confirm", fail)
        with pytest.raises(UnconfirmedError, match="No space") as caught:
            store.write([writing(1, 0, 1)], 1)
        with pytest.raises(NoSpaceError):
            store.confirm()
    store.confirm()
    assert len(caught.value.sizes) == 1
    store.write([writing(2, 0, 2)], 2)
    store.close()
    store = LogStore(tmp_path)
    assert contents(store) == {0: 2}
    store.close()


@pytest.mark.parametrize("step", ["_append", "_confirm"])
def test_after_a_failed_write_or_sync_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = LogStore(tmp_path)

    def fail(*arguments: object) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store, step, fail)
        with pytest.raises(RunFailedError, match="Input/output"):
            store.write([writing(1, 0, 1)], 1)
    with pytest.raises(RunFailedError, match="earlier write"):
        store.write([writing(1, 0, 1)], 1)
    store.close()


def test_a_new_log_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "new-log.mdb").write_bytes(b"half")
    store = LogStore(tmp_path)
    assert store.found == ()
    store.close()


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(8192), b"x" * 100_000])
def test_something_else_under_the_logs_name_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.mdb").write_bytes(content)
    with pytest.raises(DamagedDataError, match=r"log\.mdb is damaged"):
        LogStore(tmp_path)
    assert (tmp_path / "log.mdb").read_bytes() == content


def test_a_killed_writer_leaves_every_group_that_was_durable(tmp_path: Path) -> None:
    """It says so after each group, and is killed by the reader of that at some moment."""
    script = (
        "import sys; from pathlib import Path; from random import Random\n"
        "from adamctl.roles.ps.store.lmdb_log import LogStore; from tests.roles.ps.store_images import writing\n"
        "store = LogStore(Path(sys.argv[1]))\n"
        "for value in range(1, 10_000):\n"
        "    n = store.next_sequence; store.write([writing(n + s, s, value) for s in range(3)], n)\n"
        "    print(value, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = 0
        for line in process.stdout:
            told = int(line)
            if told == 20:
                process.kill()
    store = LogStore(tmp_path)
    found = contents(store)
    assert len(set(found.values())) == 1 and found[0] >= told >= 20
    assert all(isinstance(record.description, ShardState) for record in store.found)
    store.close()


_FILL_THE_DISK = """
import sys
import threading
import time
from pathlib import Path
from adamctl.roles.ps.store.lmdb_log import NEW_LOG_NAME, LogStore, NoSpaceError, UnconfirmedError
from tests.roles.ps.store_images import contents, writing

folder, ballast = Path(sys.argv[1]) / "store", Path(sys.argv[1]) / "ballast"
store = LogStore(folder)
ballast.write_bytes(bytes(1 << 20))
confirmed, full, value = {}, 0, 0
while value < 400:
    value += 1
    first = store.next_sequence
    try:
        store.write([writing(first + n, value % 50 * 4 + n, value, 4000) for n in range(4)], 1)
    except UnconfirmedError:
        full += 1
        while ballast.exists():
            try:
                store.confirm()
                break
            except NoSpaceError:
                ballast.unlink()
        else:
            store.confirm()
    except NoSpaceError:
        full += 1
        if not ballast.exists():
            break
        ballast.unlink()
        continue
    confirmed |= {value % 50 * 4 + n: value for n in range(4)}
store.close()
store = LogStore(folder)
assert contents(store) == confirmed, "all that was acknowledged, and nothing else"
print(full, len(confirmed))
"""


def test_on_a_disk_that_is_really_full_nothing_acknowledged_is_lost_and_room_is_used_when_there_is_some(
    tmp_path: Path,
) -> None:
    """On a file system of 4 MiB, mounted in a namespace of its own."""
    (tmp_path / "script.py").write_text(_FILL_THE_DISK)
    inside = f"mount -t tmpfs -o size=4m none {tmp_path / 'disk'} && exec {sys.executable} {tmp_path}/script.py $0"
    (tmp_path / "disk").mkdir()
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("no namespaces here")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", inside, str(tmp_path / "disk")],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    if "mount:" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
    full, confirmed = map(int, done.stdout.split())
    assert full >= 2 and confirmed > 20


def test_a_write_that_really_fails_ends_it(tmp_path: Path) -> None:
    """The file may not grow beyond a limit: the system refuses, and it is not for want of space."""
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from adamctl.errors import RunFailedError; from adamctl.roles.ps.store.lmdb_log import LogStore\n"
        "from tests.roles.ps.store_images import writing\n"
        "store = LogStore(Path(sys.argv[1])); store.write([writing(1, 0, 1)], 1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try: store.write([writing(2 + n, n, 2, 100_000) for n in range(3)], 1)\n"
        "except RunFailedError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "repair the disk" in done.stdout, done
    store = LogStore(tmp_path)
    assert contents(store) == {0: 1}
    store.close()
