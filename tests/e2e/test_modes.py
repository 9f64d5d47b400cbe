"""What a run writes is its owner's alone, whatever the umask; the token of a killed run goes with the next start."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from adamctl.launch.run_token import read_token
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.ports import free_ports


@contextmanager
def open_umask() -> Iterator[None]:
    """Whatever is started meanwhile makes files that are for everybody, if it does not see to that."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def too_open(top: Path) -> dict[str, str]:
    """Returns path -> mode of what others may enter, read, write or execute: files should be 0600, folders 0700."""
    found = {}
    for path in (top, *top.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
            found[str(path.relative_to(top))] = stat.filemode(mode)
    return found


def socket_folders(command: Command) -> set[Path]:
    """Returns the folders of the Unix sockets at which a run's roles listen."""
    sockets = [one.laddr for process in command.family() for one in process.net_connections("unix")]
    return {Path(address).parent for address in sockets if address}


def test_what_a_run_writes_is_its_owners_alone_and_a_killed_ones_token_goes(adamctl: Runner) -> None:
    arguments = ("train", EXAMPLES / "digits.toml", "--run-dir", adamctl.folder / "runs", "--plain")
    settings = ("--set", "train.checkpoint_every=1", "--set", "cluster.store=disk")
    with open_umask():
        killed = adamctl.start(*arguments, *settings, "--passes", "100000")
    killed.wait_until(lambda: list(adamctl.folder.glob("runs/*/001/checkpoints/*/manifest.json")))
    folder = next(adamctl.folder.glob("runs/*/001"))
    sockets = socket_folders(killed)
    assert sockets and all(too_open(place) == {} for place in sockets)
    family = killed.family()
    for process in (killed.process, *family):
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=30)
    assert too_open(adamctl.folder / "runs") == {}
    assert read_token(folder), "nobody was there to remove it"
    assert {path.name for path in folder.iterdir()} >= {
        "experiment.toml",
        "logs",
        "metrics.jsonl",
        "checkpoints",
        "stores",
    }
    assert adamctl.run(*arguments, "--passes", "1")[0] == 0
    assert not (folder / "secrets").exists()


def test_what_roles_by_hand_write_is_their_owners_alone(adamctl: Runner) -> None:
    folder, port = adamctl.folder, free_ports(1)[0]
    around = {"ADAMCTL_TOKEN": "made by hand", "ADAMCTL_CONTROLLER": f"127.0.0.1:{port}"}
    flags = ("--log-file", folder / "logs" / "ps.log", "--socket-folder", folder)
    with open_umask():
        adamctl.start("controller", "start", "--port", str(port), "--dir", folder / "controller", **around)
        ps = adamctl.start("ps", "start", "--store", folder / "store", *flags, **around)
    ps.wait_until((folder / "store" / "cluster").exists)  # written last, when it has become a member
    with open_umask():
        assert adamctl.run("controller", "backup", folder / "backup", **around)[0] == 0
    assert too_open(folder) == {}
    names = {path.name for path in folder.rglob("*") if not path.is_socket()}
    assert names >= {"backup", "controller", "vote", "store", "log.mdb", "lock", "cluster", "logs", "ps.log"}
    assert any(path.is_socket() for path in folder.iterdir())
