"""Whether there is a cluster to join is known before anything is started."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from pathlib import Path
from random import Random

import pytest

from adamctl.config.load import load_experiment
from adamctl.errors import ConfigurationError, HandshakeError, UnreachableError
from adamctl.launch.joining import find_controller, listening
from adamctl.launch.train import TrainOptions, train
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from tests.cluster import memory_cluster
from tests.launch.test_front import Notes

HELLO = make_hello("front", "front-1", 0, "")
CONTROLLER = "memory://controller-0"


@pytest.mark.parametrize("join", [(), ("127.0.0.1:7070",), ("unix:///run/c.s",), ("[::1]:7070", "localhost:7071")])
def test_the_coordinator_listens_on_loopback_if_the_controllers_do(join: tuple[str, ...]) -> None:
    assert listening(join, "", "") == ()


def test_the_coordinator_listens_where_the_cluster_reaches_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no route to other machines")
        ours = probe.getsockname()[0]
    assert listening(("192.0.2.1:7070",), "", "") == ("--bind", ours)
    assert listening(("etcd://192.0.2.1:2379,192.0.2.2:2379",), "", "head.example") == (
        "--bind", ours, "--advertise", "head.example",
    )  # fmt: skip


def test_the_coordinator_listens_where_it_is_told_to() -> None:
    assert listening(("192.0.2.1:7070",), "10.0.0.5", "") == ("--bind", "10.0.0.5")
    assert listening(("127.0.0.1:7070",), "0.0.0.0", "me") == ("--bind", "0.0.0.0", "--advertise", "me")
    for given in (("10.0.0.5", ""), ("", "me")):
        with pytest.raises(ConfigurationError, match=r"nothing to join; give --join"):
            listening((), *given)


def test_a_controller_that_answers_is_found_at_whichever_address() -> None:
    async def find() -> None:
        async with memory_cluster() as cluster:
            for addresses in ([CONTROLLER], ["memory://nobody", CONTROLLER]):
                await find_controller(cluster.network, addresses, HELLO, pytest.fail)

    run_virtual(find())


def test_a_controller_that_comes_a_little_later_is_found() -> None:
    async def find() -> list[str]:
        notes: list[str] = []
        network = MemoryNetwork(Random(1))
        finding = asyncio.ensure_future(find_controller(network, [CONTROLLER], HELLO, notes.append))
        await asyncio.sleep(3.0)
        async with memory_cluster(network=network):
            await finding
        return notes

    assert run_virtual(find()) == [f"waiting for the controller at {CONTROLLER}, for 2 s"]


def test_nobody_answers_and_the_message_says_whom_it_waited_for() -> None:
    async def find() -> float:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(UnreachableError, match=r"memory://a, memory://b did not answer within 5 s .*--join"):
            await find_controller(MemoryNetwork(Random(1)), ["memory://a", "memory://b"], HELLO, lambda text: None)
        return loop.time() - started_s

    assert run_virtual(find()) <= 5.5


async def test_who_accepts_and_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
            await find_controller(StreamTransport(), [address], HELLO, lambda text: None, deadline_s=0.3)


async def test_another_role_or_another_token_is_wrong_at_once() -> None:
    async with memory_cluster() as cluster:
        other = await cluster.context("data", "data-0")
        await other.serve(lambda request: None)
        with pytest.raises(ConfigurationError, match="expected a controller at memory://data-0, found data data-0"):
            await find_controller(cluster.network, ["memory://data-0"], HELLO, pytest.fail)
        wrong = make_hello("front", "front-1", 0, "another")
        with pytest.raises(HandshakeError, match="token"):
            await find_controller(cluster.network, [CONTROLLER], wrong, pytest.fail)


def test_a_run_that_cannot_join_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.launch.train.find_controller", partial(find_controller, deadline_s=0.2))
    digits = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
    experiment = load_experiment(digits, settings=(), environment={}, search=()).experiment
    options = TrainOptions((f"unix://{tmp_path}/nobody",), "none", tmp_path / "runs", os.environ)
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.2 s"):
        train(experiment, options, Notes())
    assert list(tmp_path.iterdir()) == []
