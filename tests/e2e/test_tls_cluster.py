"""A cluster over TLS by real processes: members, a client, a person's commands, and what each of them is refused."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import HandshakeError
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import Credentials
from tests.net.tls.certificates import Authority

READY_S = 60.0


def clean(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ADAMCTL_")}
    return {**kept, "ADAMCTL_TRANSPORT": "tcp", "PYTHONPATH": os.pathsep.join(sys.path), **more}


@contextmanager
def role(folder: Path, name: str, tls: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a role with a certificate; yields its process and the address that it says it is ready on."""
    command = [sys.executable, "-m", "adamctl", name, "start", "--port", "0", "--tls-dir", str(tls), *flags]
    log = folder / f"{tls.name}.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder, env=clean())
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " ready on " in line, log.read_text()
            yield process, next(part for part in line.replace(",", " ").split() if part.startswith("tcp://"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=READY_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Authority, str, str]]:
    """A controller and a parameter server: their folder, their authority, and the address of each."""
    folder = tmp_path_factory.mktemp("cluster")
    authority = Authority(folder / "tls")
    with ExitStack() as stack:
        head = authority.write("controller", "head")
        _, controller = stack.enter_context(role(folder, "controller", head, "--dir", "state"))
        server = authority.write("ps", "ps-1", lifetime_s=4000.0)
        _, address = stack.enter_context(role(folder, "ps", server, "--controller", controller))
        yield folder, authority, controller, address


def command(folder: Path, tls: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "adamctl", *arguments, "--tls-dir", str(tls)],
        capture_output=True, text=True, timeout=READY_S, cwd=folder, env=clean(), check=False,
    )  # fmt: skip


def test_a_client_and_an_operator_use_a_cluster_over_tls(cluster: tuple[Path, Authority, str, str]) -> None:
    folder, authority, controller, _ = cluster
    host = controller.removeprefix("tcp://")
    certificate = authority.write("client", "app")
    with adam.ParameterClient(f"adam://{host}/job", tls_dir=certificate) as client:
        client.register({"w": np.ones(10, np.float32)}, rule=RuleConfig("sgd"))
        client.push({"w": np.full(10, 0.25, np.float32)}, 1.0)
        client.wait()
        assert np.allclose(client.pull()["w"], 0.75)
    status = command(folder, authority.write("operator", "anna"), "status", "--controller", host, "--json")
    assert status.returncode == 0, status.stderr
    told = json.loads(status.stdout)
    assert told["controller"]["certificate"]["identity"] == "adam://nord/controller/head"
    (server,) = [node for node in told["nodes"] if node["role"] == "ps"]
    assert server["node"] == "ps-1" and server["status"]["certificate"]["identity"] == "adam://nord/ps/ps-1"
    assert 0 < server["status"]["certificate"]["seconds_left"] <= 4000


def test_commands_of_others_are_refused_with_what_to_do(cluster: tuple[Path, Authority, str, str]) -> None:
    folder, authority, controller, _ = cluster
    stranger = Authority(folder / "other").write("operator", "eve")
    done = command(folder, stranger, "status", "--controller", controller)
    assert done.returncode == 2 and "of another authority" in done.stderr
    worker = authority.write("worker", "w-1")
    done = command(folder, worker, "status", "--controller", controller)
    assert done.returncode == 2 and "its certificate does not allow" in done.stderr
    assert "adamctl tls create-operator NAME" in done.stderr


def test_a_role_with_a_certificate_of_somebody_else_does_not_start(
    cluster: tuple[Path, Authority, str, str],
) -> None:
    folder, authority, controller, _ = cluster
    worker = authority.write("worker", "w-1")
    done = command(folder, worker, "ps", "start", "--controller", controller)
    assert done.returncode == 2 and "its certificate is for adam://nord/worker/w-1" in done.stderr


def test_whoever_has_no_certificate_is_told_so(cluster: tuple[Path, Authority, str, str]) -> None:
    *_, controller, address = cluster

    async def connect(where: str) -> None:
        await StreamTransport(tls=None).connect(where, make_hello("operator", "x", token="any"), deadline_s=10)

    for where in (controller, address):
        with pytest.raises(HandshakeError, match="speaks only TLS"):
            run(connect(where))


def test_a_signal_makes_a_role_take_its_new_certificate_and_go_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    folder = authority.write("controller", "head", lifetime_s=4000.0)

    async def until_s(address: str) -> float:
        transport = StreamTransport(tls=Credentials(authority.write("operator", "anna")))
        connection = await transport.connect(address, make_hello("front", "f"), deadline_s=10)
        certificate = connection._protocol._transport._engine.certificate  # type: ignore[union-attr]
        await connection.close()
        return ssl.cert_time_to_seconds(certificate["notAfter"])

    with role(tmp_path, "controller", folder, "--dir", "state") as (process, address):
        before = run(until_s(address))
        authority.write("controller", "head", lifetime_s=80000.0)
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while run(until_s(address)) == before:
            assert time.monotonic() < deadline
        assert process.poll() is None
        assert "was read again" in (tmp_path / f"{folder.name}.log").read_text()


@pytest.mark.slow
def test_certificates_that_expire_while_a_client_pushes_are_replaced_without_a_failure(tmp_path: Path) -> None:
    """Certificates of 9 seconds, each renewed every 2 seconds, for half a minute: every push is acknowledged."""
    authority = Authority(tmp_path / "tls")
    members = (("controller", "head"), ("ps", "ps-1"), ("client", "app"))
    done = threading.Event()

    def renew() -> None:
        while True:
            for role_name, node in members:
                authority.write(role_name, node, lifetime_s=9.0)
            if done.wait(2.0):
                return

    folders = {node: authority.write(role_name, node, lifetime_s=9.0) for role_name, node in members}
    renewing = threading.Thread(target=renew)
    renewing.start()
    with ExitStack() as stack:
        stack.callback(renewing.join, 30)
        stack.callback(done.set)
        _, controller = stack.enter_context(role(tmp_path, "controller", folders["head"], "--dir", "state"))
        stack.enter_context(role(tmp_path, "ps", folders["ps-1"], "--controller", controller))
        host = controller.removeprefix("tcp://")
        client = stack.enter_context(adam.ParameterClient(f"adam://{host}/job", tls_dir=folders["app"]))
        client.register({"w": np.zeros(1000, np.float32)}, rule=RuleConfig("sgd"))
        pushes, longest_s = 0, 0.0
        began_s = time.monotonic()
        while (now_s := time.monotonic()) < began_s + 30:
            client.push({"w": np.full(1000, -1.0, np.float32)}, 1.0)
            client.wait()
            pushes += 1
            longest_s = max(longest_s, time.monotonic() - now_s)
        assert np.allclose(client.pull()["w"], pushes), "an acknowledged push is missing, or was applied twice"
        print(f"{pushes} pushes, the longest took {longest_s:.3f} s")
        told = (tmp_path / "ps-ps-1.log").read_text()
        assert "Traceback" not in told


@pytest.mark.slow
def test_a_person_trains_on_a_cluster_over_tls(tmp_path: Path) -> None:
    """Every byte goes by TLS: a run that joins, with a coordinator that an operator's certificate vouches for."""
    authority = Authority(tmp_path / "tls")
    experiment = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
    with ExitStack() as stack:
        head = authority.write("controller", "head")
        _, controller = stack.enter_context(role(tmp_path, "controller", head, "--dir", "state"))
        for name in ("ps", "data", "worker"):
            flags = ("--threads", "1") if name == "worker" else ()
            tls = authority.write(name, f"{name}-1")
            stack.enter_context(role(tmp_path, name, tls, "--controller", controller, *flags))
        anna = authority.write("operator", "anna")
        settings = ("--passes", "2", "--workers", "1", "--ps", "1", "--set", "cluster.replication=1")
        done = command(tmp_path, anna, "train", str(experiment), "--join", controller, "--plain", "--json", *settings)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["exit_code"] == 0
        status = command(tmp_path, anna, "status", "--controller", controller, "--json")
        (job,) = json.loads(status.stdout)["jobs"]
        assert "anna.coordinator-digits-" in json.dumps(job)
