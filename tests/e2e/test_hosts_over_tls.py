"""Whole runs on hosts over TLS: every connection of every role, who is refused, and certificates that end with it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import adamctl as adam
from adamctl.bench.metrics import scrape
from adamctl.errors import HandshakeError
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.by_token import token_credentials
from adamctl.net.tls.credentials import Credentials, load
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.test_hosts import COPIES, LONG, note
from tests.net.tls.certificates import Authority
from tests.ports import free_ports

DIGITS = EXAMPLES / "digits.toml"
LOOPBACK = ("--bind", "127.0.0.1", "--advertise", "127.0.0.1")


def state(folder: Path) -> dict[str, str]:
    """Returns an environment in which all that processes of one machine say to each other goes over TCP."""
    return {
        "ADAMCTL_STATE": str(folder / "state"), "ADAMCTL_TRANSPORT": "tcp", "ADAMCTL_DATA": "", "ADAMCTL_TLS": "",
        "ADAMCTL_INSECURE": "",
    }  # fmt: skip


def connect(tls: Credentials | None, address: str, role: str, node: str, token: str = "") -> None:
    async def whole() -> None:
        connection = await StreamTransport(tls=tls).connect(address, make_hello(role, node, token=token), deadline_s=10)
        await connection.close()

    run(whole())


def certificates(command: Command) -> dict[str, Path]:
    """Returns node -> the folder of its certificate, for the roles of a run, by what they were started with."""
    found = {}
    for process in command.family():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "--tls-dir" in line and "start" in line:
            found[line[line.index("--name") + 1]] = Path(line[line.index("--tls-dir") + 1])
    return found


def status(adamctl: Runner, environment: dict[str, str]) -> dict[str, Any]:
    code, stdout, stderr = adamctl.run("status", "--json", **environment)
    assert code == 0, stderr
    found: dict[str, Any] = json.loads(stdout)
    return found


@pytest.mark.slow
def test_every_connection_of_a_run_is_tls_and_nothing_of_it_is_left(adamctl: Runner, tmp_path: Path) -> None:
    environment = state(tmp_path)
    (port,) = free_ports(1)
    train = adamctl.start(
        "train", DIGITS, "--plain", "--json", "--hosts", "3", "--on", "local", "--tls", "--metrics-port", str(port),
        *LONG, *COPIES, **environment,
    )  # fmt: skip
    train.wait_until(train.trained)
    token = (tmp_path / "runs/digits/001/secrets/token").read_text().strip()
    kept = tmp_path / "runs/digits/001/secrets/tls"
    places = certificates(train)
    roles = {f"{role}-{number}" for role in ("controller", "worker") for number in (1, 2, 3)}
    assert places.keys() == roles | {"coordinator", "ps-1", "ps-2", "data-1"}
    addresses = {one["node"]: one["addresses"] for one in status(adamctl, environment)["nodes"]}
    said = note(tmp_path)
    addresses |= {"controllers": said["controllers"], "the front": said["front"]}
    reached = {name: one for name, found in addresses.items() for one in found if one.startswith("tcp://")}
    assert reached.keys() == places.keys() - {f"controller-{number}" for number in (1, 2, 3)} | {
        "controllers",
        "the front",
    }
    for address in {*reached.values(), *said["controllers"]}:
        with pytest.raises(HandshakeError, match="speaks only TLS"):
            connect(None, address, "operator", "eve", token)

    agent = token_credentials(token, "host", "host-9", tmp_path / "own")
    connect(agent, reached["the front"], "host", "host-9")
    for name in reached.keys() - {"the front"}:  # roles trust what the front has vouched for, and not the token
        with pytest.raises(HandshakeError, match="of another authority"):
            connect(agent, reached[name], "host", "host-9")
    with pytest.raises(HandshakeError, match="of another authority"):
        stranger = token_credentials("another", "host", "host-1", tmp_path / "another")
        connect(stranger, reached["the front"], "host", "host-1")

    stolen, controller = Credentials(places["worker-1"]), reached["controllers"]
    connect(stolen, controller, "worker", "worker-1.thief")
    for role, node in (
        ("worker", "worker-2"),
        ("ps", "worker-1"),
        ("operator", "worker-1"),
        ("controller", "worker-1"),
    ):
        with pytest.raises(HandshakeError, match="its certificate does not allow"):
            connect(stolen, controller, role, node)

    with adam.ParameterClient(f"adam://{controller.removeprefix('tcp://')}/own", tls_dir=kept / "operator") as client:
        client.register({"w": np.ones(10, np.float32)})
        assert np.array_equal(client.pull()["w"], np.ones(10, np.float32))
        client.close(end=True)

    keys = {(place / "node.key").read_text().split("\n")[1] for place in (*places.values(), kept / "operator")}
    assert len(keys) == len(places) + 1, "each has a key of its own"
    for process in train.family():
        shown = " ".join((*process.cmdline(), *process.environ().values()))
        assert not any(key in shown for key in keys)
        if any(f" {role} start" in " ".join(process.cmdline()) for role in ("ps", "worker", "data", "controller")):
            assert token not in shown, "whoever has it can be a host of the run"
    for place in (*places.values(), kept / "operator", kept / "agents"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700 and load(place)
    train.wait_until(lambda: up(port) == len(places), 60)  # a controller's status tells of the others
    code, stdout, stderr = adamctl.run("logs", "digits", "--role", "worker", **environment)
    assert code == 0 and "worker-1 | " in stdout and "cannot be fetched" not in stderr, stderr
    texts = [path.read_text() for path in (tmp_path / "runs").rglob("*.log")]
    assert not any("PRIVATE KEY" in text or any(key in text for key in keys) for text in texts)
    code, _, stderr = adamctl.run("run", "stop", "digits", **environment)
    assert code == 0, stderr
    code, stdout, stderr = train.wait(120)
    assert json.loads(stdout)["state"] == "stopped", stderr
    assert not kept.parent.exists() and not any(place.exists() for place in places.values())


def up(port: int) -> int:
    """Returns how many nodes of a run answer, as its metrics have it."""
    metrics = run(scrape(f"http://127.0.0.1:{port}/metrics"))
    return sum(line.startswith("adamctl_node_up{") and line.endswith(" 1.0") for line in metrics.splitlines())


@pytest.mark.slow
def test_a_run_over_tls_reaches_what_it_does_without(adamctl: Runner, tmp_path: Path) -> None:
    code, stdout, stderr = adamctl.run(
        "train", DIGITS, "--json", "--hosts", "2", "--on", "local", "--tls", "--passes", "25", *COPIES,
        **state(tmp_path),
    )  # fmt: skip
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.95, stderr


@pytest.mark.slow
def test_agents_by_hand_with_certificates_of_the_users_authority(adamctl: Runner, tmp_path: Path) -> None:
    environment = state(tmp_path)
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    train = adamctl.start(
        "train", DIGITS, "--plain", "--json", "--hosts", "1", *LOOPBACK, *LONG,
        "--tls-dir", ours.write("operator", "anna"), **environment,
    )  # fmt: skip
    front = train.wait_until(lambda: note(tmp_path).get("front"), 60)[0]
    (token,) = tmp_path.glob("runs/*/001/secrets/token")

    def agent(name: str, *flags: str | Path) -> Command:
        return adamctl.start(
            "host", "start", "--front", front, "--name", name, "--root", tmp_path / name, "--wait", "20",
            "--checkpoint-root", tmp_path / "runs", *flags, **environment,
        )  # fmt: skip

    for text, flags in (
        ("of another authority", ("--tls-dir", theirs.write("host", "far"))),
        ("its certificate is for adam://nord/worker/far", ("--tls-dir", ours.write("worker", "far"))),
        ("its certificate is for adam://nord/host/near", ("--tls-dir", ours.write("host", "near"))),
        ("make their certificates of the run's token", ("--tls", "--token-file", token)),
        ("speaks only TLS; leave --insecure out", ("--token-file", token)),
    ):
        code, _, stderr = agent("far", *flags).wait(60)
        assert code == 2 and text in stderr, (text, stderr)
    good = agent("far", "--tls-dir", ours.write("host", "far"))
    train.wait_until(train.trained)
    code, stdout, stderr = adamctl.run("logs", "digits", "--role", "worker", **environment)
    assert code == 0 and "worker-1 | " in stdout and "cannot be fetched" not in stderr, stderr
    train.interrupt()
    code, _, stderr = train.wait(120)
    assert code == 130, stderr
    assert "--tls-dir TLS_DIR --name NAME" in stderr and "1 host: far" in stderr
    assert good.wait(60)[0] == 0


@pytest.mark.slow
def test_metrics_of_a_run_on_hosts_without_tls(adamctl: Runner, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    train = adamctl.start(
        "train", DIGITS, "--plain", "--hosts", "1", "--on", "local", "--metrics-port", str(port), *LONG,
        **state(tmp_path),
    )  # fmt: skip
    train.wait_until(train.trained)
    metrics = run(scrape(f"http://127.0.0.1:{port}/metrics"))
    assert "adamctl_node_up{" in metrics and "adamctl_examples_total" in metrics
    train.interrupt()
    assert train.wait(120)[0] == 130
