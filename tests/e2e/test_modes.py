"""What a run writes is its owner's alone, whatever the umask; the token of a killed run goes with the next start."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from adamctl.launch.run_token import read_token
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.test_hosts import node, note
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


@pytest.mark.slow
def test_what_a_run_on_hosts_with_three_controllers_writes_is_its_owners_alone(adamctl: Runner) -> None:
    """The run folder, the folder of notes, and those of agents that a person has started."""
    folder = adamctl.folder
    state = {"ADAMCTL_STATE": str(folder / "of" / "mine" / "state"), "ADAMCTL_DATA": ""}
    settings = ("--set", "train.checkpoint_every=1", "--set", "cluster.store=disk", "--set", "cluster.replication=3")
    loopback = ("--bind", "127.0.0.1", "--advertise", "127.0.0.1", "--run-dir", folder / "many" / "runs")
    with open_umask():
        train = adamctl.start(
            "train", EXAMPLES / "digits.toml", "--plain", "--hosts", "3", "--spares", "1", "--ps", "3", *settings,
            *loopback, "--passes", "100000", **state,
        )  # fmt: skip
        front = train.wait_until(lambda: note(folder / "of" / "mine").get("front"), 60)[0]
        (token,) = folder.glob("many/runs/*/001/secrets/token")
        flags = ("--front", front, "--token-file", token, "--checkpoint-root", folder / "many" / "runs")
        agents = [
            adamctl.start("host", "start", *flags, "--name", name, "--root", folder / "agents" / name, **state)
            for name in ("a", "b", "c", "spare")
        ]
    train.wait_until(lambda: list(folder.glob("many/runs/*/001/checkpoints/*/manifest.json")))
    homes = {one.name for one in (folder / "agents").iterdir() if list(one.glob("*/kept/controller-*"))}
    replaced = next(agent for agent, name in zip(agents, ("a", "b", "c", "spare"), strict=True) if name in homes)
    replaced.process.kill()
    train.wait_until(lambda: list(folder.glob("agents/*/*/kept/controller-4/vote")))
    living = [process for command in (train, *agents) for process in (command.process, *command.family())]
    sockets = {place for command in (train, *agents) for place in socket_folders(command)}
    assert sockets and all(too_open(place) == {} for place in sockets)
    for process in living:
        process.send_signal(signal.SIGKILL)
    for command in (train, *agents):
        command.process.communicate(timeout=30)
    until_s = time.monotonic() + 30
    while any(command.family() for command in (train, *agents)) and time.monotonic() < until_s:
        time.sleep(0.1)
    for place in ("of", "many", "agents"):
        assert too_open(folder / place) == {}
    names = {path.name for path in folder.rglob("*")}
    assert names >= {"controller-1", "controller-3", "vote", "ps-1", "log.mdb", "worker-1.log", "metrics.jsonl"}
    assert node(train, "controller", "controller-4") is None


@pytest.mark.slow
def test_what_is_made_for_tls_is_its_owners_alone(adamctl: Runner) -> None:
    pytest.importorskip("cryptography")
    folder = adamctl.folder / "all" / "tls"
    ca = ("--ca", folder / "ca")
    with open_umask():
        for arguments in (
            ("create-ca", "digits", *ca),
            ("create", "controller", "head", *ca, "--out", folder / "head"),
            ("create-operator", "anna", *ca, "--out", folder / "anna"),
            ("create", "ps", "ps-1", "--request", "digits", "--out", folder / "ps-1"),
            ("sign", folder / "ps-1" / "node.csr", *ca),
            ("renew", folder / "head", *ca),
        ):
            code, _, stderr = adamctl.run("tls", *arguments)
            assert code == 0, stderr
    assert too_open(adamctl.folder / "all") == {}
    names = {path.name for path in folder.rglob("*")}
    assert names >= {"ca.key", "ca.crt", "node.key", "node.crt", "node.csr"}
