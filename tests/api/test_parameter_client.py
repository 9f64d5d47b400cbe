"""Clients for other frameworks, against a real controller and two real parameter servers on loopback."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import adamctl as adam
from adamctl.api.parameter_client_arrays import make_tensors
from adamctl.cli.cluster import ClusterReader
from adamctl.cli.main import application
from adamctl.config.records import JobRecord, NodeRecord
from adamctl.errors import (
    ConfigurationError,
    HandshakeError,
    NotFiniteError,
    RunFailedError,
    UnreachableError,
)
from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.client import nodes_of
from adamctl.roles.coordinator.job import job_changes, rule_of
from tests.api.cluster_for_tests import TOKEN, address_of, running_cluster, start

COUNT = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def url(cluster: str) -> str:
    """A job of its own for each test."""
    return f"adam://{cluster}/job-{next(COUNT)}"


def client(url: str, **options: Any) -> adam.ParameterClient:
    return adam.ParameterClient(url, **{"token": TOKEN, "deadline_s": 20.0} | options)


def nested() -> dict[str, Any]:
    return {
        "layer": {"weight": np.arange(12, dtype=np.float64).reshape(3, 4), "bias": np.array([1, 2, 3])},
        "list": [np.float32(7), (np.ones((2, 1, 3), np.float16),)],
        "long rows": np.arange(2 * 300_000, dtype=np.float32).reshape(2, 300_000),
    }


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(equal(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        pairs = zip(found, expected, strict=True)
        return type(found) is type(expected) and all(equal(one, other) for one, other in pairs)
    assert found.dtype == np.float32 and found.shape == np.shape(expected)
    return bool(np.array_equal(found, expected))


def test_what_is_registered_comes_back_as_it_was_nested_for_the_first_and_for_others(url: str) -> None:
    with client(url) as first, client(url) as second:
        assert equal(first.register(nested(), rule=adam.SGD(0.5)), nested())
        assert equal(second.register(adam_zeros(nested())), nested())
        assert (first.created, second.created) == (True, False)
        assert first.job == second.job == url.rpartition("/")[2]
        first.push({"layer": {"weight": np.ones((3, 4))}, "list": [np.float32(2), None]}, learning_rate=0.25)
        first.wait()
        found = second.pull()
        np.testing.assert_array_equal(found["layer"]["weight"], nested()["layer"]["weight"] - 0.25)
        assert found["list"][0] == 6.5
        np.testing.assert_array_equal(found["layer"]["bias"], [1, 2, 3])
        first.close(end=True)


def adam_zeros(arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {key: adam_zeros(value) for key, value in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(adam_zeros(value) for value in arrays)
    return np.zeros_like(arrays)


def test_pulls_go_to_the_registered_arrays_without_a_copy_or_into_given_ones(url: str) -> None:
    with client(url) as ps:
        params = ps.register({"a": np.zeros(5), "b": np.zeros((2, 2))})
        ps.push({"a": np.ones(5), "b": np.full((2, 2), 2.0)})  # no rule: what is pushed is added
        ps.wait()
        assert not params["a"].any()
        pulled = ps.pull()
        assert pulled["a"] is not params["a"] and np.shares_memory(pulled["a"], params["a"])
        np.testing.assert_array_equal(params["a"], 1)
        mine = {"b": np.zeros((2, 2), np.float64)}
        assert ps.pull(into=mine) is mine
        np.testing.assert_array_equal(mine["b"], 2)
        for wrong, words in (({"b": np.zeros(4)}, r"shape \[2, 2\]"), ({"c": np.zeros(1)}, "c: no array of this name")):
            with pytest.raises(ConfigurationError, match=words):
                ps.pull(into=wrong)
        ps.close(end=True)


RULES: tuple[Callable[[], Any], ...] = (
    lambda: adam.SGD(0.1, weight_decay=0.01),
    lambda: adam.Momentum(0.1, 0.8, nesterov=True),
    lambda: adam.Adagrad(0.1),
    lambda: adam.RMSProp(0.01, 0.8),
    lambda: adam.Adam(0.01),
)


@pytest.mark.parametrize("make", RULES)
def test_the_servers_apply_the_rule_with_its_settings_from_the_given_values(url: str, make: Callable[[], Any]) -> None:
    config = make()
    rule = make_rule(rule_of(config), "numpy")
    weights = np.linspace(-1, 1, 40, dtype=np.float32)
    state = rule.initial_state(40)
    generator = np.random.default_rng(3)
    with client(url) as ps:
        ps.register([weights.reshape(8, 5)], rule=config)
        for step in range(5):
            gradient = generator.standard_normal(40).astype(np.float32)
            ps.push([gradient.reshape(8, 5)])
            if step == 2:
                ps.add([np.full((8, 5), 0.5)])
            rule.apply(weights, weights, state, gradient, config.lr)
            weights += 0.5 if step == 2 else 0
        ps.wait()
        np.testing.assert_allclose(ps.pull()[0].ravel(), weights, rtol=1e-5, atol=1e-6)
        ps.close(end=True)


async def test_of_several_at_once_exactly_one_gives_its_values(url: str) -> None:
    clients = [adam.AsyncParameterClient(url, token=TOKEN, deadline_s=20.0) for _ in range(6)]
    values = [{"w": np.full((50, 20), float(number)), "b": np.full(3, float(number))} for number in range(6)]
    await asyncio.gather(*(one.connect() for one in clients))
    found = await asyncio.gather(*(one.register(value) for one, value in zip(clients, values, strict=True)))
    (maker,) = [number for number, one in enumerate(clients) if one.created]
    for params in found:
        assert (params["w"] == maker).all() and (params["b"] == maker).all()
    await asyncio.gather(*(one.push({"w": np.ones((50, 20))}) for one in clients))
    await asyncio.gather(*(one.wait() for one in clients))
    assert ((await clients[0].pull())["w"] == maker + 6).all()
    await clients[0].close(end=True)
    await asyncio.gather(*(one.close() for one in clients[1:]))


async def test_the_asynchronous_twin_does_what_the_other_does(url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN) as ps:
        (w,) = await ps.register([np.ones(4)], rule=adam.SGD(1.0))
        await ps.push([w])
        await ps.wait()
        assert not (await ps.pull())[0].any()
        await ps.add([np.ones(4)])
        await ps.wait()
        into = [np.empty(4)]
        assert (await ps.pull(into))[0].all()
        await ps.close(end=True)


def test_a_job_that_is_there_can_be_used_without_knowing_its_arrays(url: str) -> None:
    with client(url) as first, client(url) as second:
        first.register({"x": [np.arange(3), np.float64(2)]}, rule=adam.SGD(1.0))
        found = second.register()
        assert list(found) == ["x.0", "x.1"]
        with pytest.raises(ConfigurationError, match="learning_rate"):
            second.push({"x.0": np.ones(3)})
        second.push({"x.0": np.ones(3)}, 0.5)
        second.wait()
        np.testing.assert_array_equal(first.pull()["x"][0], [-0.5, 0.5, 1.5])
        first.close(end=True)


def test_other_arrays_or_another_rule_are_refused_and_said(url: str) -> None:
    with client(url) as first:
        first.register({"w": np.ones((3, 4)), "b": np.ones(3)}, rule=adam.Adagrad(0.1))
        for arrays, words in (
            ({"w": np.ones((4, 3)), "b": np.ones(3)}, r"w: expected \[3, 4\], found \[4, 3\]"),
            ({"w": np.ones((3, 4))}, r"b: expected \[3\], found none"),
            ({"w": np.ones((3, 4)), "b": np.ones(3), "c": np.ones(1)}, r"c: expected none, found \[1\]"),
        ):
            with client(url) as other, pytest.raises(ConfigurationError, match=words):
                other.register(arrays)
        with client(url) as other:
            with pytest.raises(ConfigurationError, match=r"runs .*adagrad"):
                other.register({"w": np.ones((3, 4)), "b": np.ones(3)}, rule=adam.SGD(0.1))
            other.register({"b": np.zeros(3), "w": np.zeros((3, 4))}, rule=adam.Adagrad(0.7))  # each its own rate
            with pytest.raises(ConfigurationError, match="one call"):
                other.register([np.ones(3)])
        first.close(end=True)


def test_what_is_pushed_must_fit(url: str) -> None:
    with client(url) as ps:
        with pytest.raises(ConfigurationError, match="register before"):
            ps.push([np.ones(3)])
        ps.register({"w": np.ones((3, 4)), "l": [np.ones(2)]}, rule=adam.SGD(0.1))
        for wrong, words in (
            ({"w": np.ones(12)}, r"w: expected shape \[3, 4\]; found \[12\]"),
            ({"v": np.ones(12)}, "v: no array of this name"),
            ({"l": [np.ones(2), np.ones(2)]}, "l: expected 1 in a list; found 2"),
            ({"l": np.ones(2)}, "l: expected 1 in a list; found ndarray"),
            ({"w": "text"}, "w: expected an array of numbers"),
            ([np.ones(2)], "expected a dict"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                ps.push(wrong)
        assert (ps.pull()["w"] == 1).all()
        ps.close(end=True)


def test_nan_is_refused_and_nothing_of_it_applied(url: str) -> None:
    bad = np.array([[1.0, np.nan], [0.0, 0.0]])
    with client(url) as ps:
        with pytest.raises(NotFiniteError, match="w: expected finite initial values"):
            ps.register({"w": bad})
        ps.register({"w": np.zeros((2, 2)), "b": np.zeros(2)}, rule=adam.SGD(1.0))
        with pytest.raises(NotFiniteError, match="w: expected finite values"):
            ps.push({"b": np.ones(2), "w": bad})
        with pytest.raises(NotFiniteError, match="learning_rate"):
            ps.push({"b": np.ones(2)}, float("nan"))
        with pytest.raises(NotFiniteError):
            ps.push({"b": np.full(2, 1e300)})  # infinite in float32
        ps.wait()
        assert not ps.pull()["b"].any()
        ps.push({"b": np.ones(2)})
        ps.wait()
        assert (ps.pull()["b"] == -1).all()
        ps.close(end=True)


def test_lent_arrays_are_sent_as_they_are_and_must_be_float32(url: str) -> None:
    with client(url) as ps:
        ps.register([np.zeros(6)])
        with pytest.raises(ConfigurationError, match="C-contiguous float32"):
            ps.push([np.ones(6)], copy=False)
        with pytest.raises(ConfigurationError, match="not contiguous"):
            ps.push([np.ones(12, np.float32)[::2]], copy=False)
        ps.push([np.ones(6, np.float32)], copy=False)
        ps.wait()
        assert (ps.pull()[0] == 1).all()
        ps.close(end=True)


def test_many_pushes_arrive_once_each_however_few_may_be_on_their_way(url: str) -> None:
    with client(url, pushes_max=2) as ps:
        ps.register([np.zeros((64, 64))])
        reused = np.ones((64, 64), np.float32)
        for number in range(100):
            reused[...] = number  # it was copied
            ps.push([reused])
        ps.wait()
        assert (ps.pull()[0] == sum(range(100))).all()
        ps.close(end=True)


class TestReaching:
    def test_nobody_there(self) -> None:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            client("adam://127.0.0.1:1/x", deadline_s=0.5)

    def test_a_wrong_token(self, url: str) -> None:
        with pytest.raises(HandshakeError, match="token"):
            client(url, token="wrong")

    def test_the_token_of_the_environment(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ADAMCTL_TOKEN", TOKEN)
        client(url, token=None).close()

    @pytest.mark.parametrize(
        "wrong",
        ["h:1/x", "adam://h:1", "adam://h:1/", "adam://h/x", "adam://h:1/a/b", "http://h:1/x", "adam://h:1/a~2"],
    )
    def test_an_address_that_is_none(self, wrong: str) -> None:
        with pytest.raises(ConfigurationError, match="expected"):
            client(wrong)

    def test_a_job_that_is_not_there(self, url: str) -> None:
        with client(url, deadline_s=0.5) as ps, pytest.raises(UnreachableError, match="no job"):
            ps.register()

    def test_more_servers_than_there_are(self, url: str) -> None:
        with client(url, deadline_s=0.5) as ps, pytest.raises(UnreachableError, match="3 parameter servers"):
            ps.register([np.ones(3)], servers=3)

    def test_closed_twice_and_used_afterwards_or_in_a_fork(self, url: str) -> None:
        ps = client(url)
        ps._pid += 1
        with pytest.raises(ConfigurationError, match="another process"):
            ps.register([np.ones(3)])
        ps._pid -= 1
        ps.close()
        ps.close()
        with pytest.raises(ConfigurationError, match="it is closed"):
            ps.register([np.ones(3)])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "at least one"),
        (np.ones(3), "expected a dict"),
        ({"w": np.ones((0, 3))}, "with elements"),
        ({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, "two arrays have this name"),
        ({"w": np.array(["a"])}, "numbers"),
    ],
)
def test_what_cannot_be_registered(url: str, arrays: Any, words: str) -> None:
    with client(url) as ps, pytest.raises(ConfigurationError, match=words):
        ps.register(arrays)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda: adam.SGD(0.1, schedule=adam.Schedule("cosine")), "learning_rate="),
        (lambda: adam.SGD(0.1, clip_norm=1.0), "clip_norm"),
        (lambda: adam.Momentum(0.1, 1.5), "momentum"),
        (lambda: RuleConfig("nothing"), "expected one of"),
    ],
)
def test_rules_that_servers_cannot_carry_out(url: str, rule: Callable[[], Any], words: str) -> None:
    with client(url) as ps, pytest.raises(ConfigurationError, match=words):
        ps.register([np.ones(3)], rule=rule())


class TestEnding:
    def test_whoever_uses_an_ended_job_is_told_and_a_new_one_of_the_name_begins_anew(self, url: str) -> None:
        with client(url) as first, client(url) as second, client(url) as third:
            first.register([np.ones(3)])
            second.register([np.ones(3)])
            first.close(end=True)
            (params,) = third.register([np.full(3, 5.0)])
            assert third.created and (params == 5).all()
            assert third.job == f"{url.rpartition('/')[2]}~2"
            with pytest.raises(RunFailedError, match="has ended"):
                second.push([np.ones(3)])
                second.wait()
            third.close(end=True)

    def test_from_the_command_line(self, cluster: str, url: str) -> None:
        with client(url) as ps:
            ps.register([np.ones(3)])
            command = ["run", "stop", ps.job, "--controller", cluster, "--token", TOKEN]
            assert "has ended" in CliRunner().invoke(application, command).stdout
            again = CliRunner().invoke(application, command).exception
            assert isinstance(again, ConfigurationError) and "expected one that runs" in str(again)
            with client(url) as other:
                other.register([np.ones(3)])
                assert other.created
                other.close(end=True)

    async def test_a_job_whose_maker_died_before_it_gave_values_is_made_anew(self, url: str) -> None:
        """At first the maker is another living client, which is waited for; then it is gone."""
        name = url.rpartition("/")[2]
        maker = adam.AsyncParameterClient(url, token=TOKEN)
        await maker.connect()
        other = adam.AsyncParameterClient(url, token=TOKEN, deadline_s=20.0)
        await other.connect()
        store = other._store
        _, entries = await store.read("/nodes/")
        servers: list[NodeRecord] = nodes_of(entries, "ps")
        layout = cut_layout(make_tensors({"w": (30, 7)}), len(servers))
        record = JobRecord("running", layout.hash, RuleConfig("add"), 0, maker._node)
        changes = job_changes(name, record, layout, len(servers), servers)
        assert not (await store.compare_and_set(changes)).conflicts
        registering = asyncio.ensure_future(other.register({"w": np.full((30, 7), 3.0)}))
        await asyncio.sleep(0.3)
        assert not registering.done()
        await maker.close()
        params = await registering
        assert (params["w"] == 3).all() and other.created and other.job == f"{name}~2"
        await other.close(end=True)


async def test_the_cluster_shows_who_takes_part(cluster: str, url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN) as ps, ClusterReader([cluster], TOKEN) as reader:
        await ps.register([np.ones(3)])
        found = await reader.read()
        (shown,) = [node for node in found["nodes"] if node["role"] == "client"]
        assert shown["answers"]
        (job,) = [job for job in found["jobs"] if job["job"] == ps.job]
        assert (job["state"], job["coordinator"]) == ("running", shown["node"])
        await ps.close(end=True)


def test_durable_pushes_survive_a_server_that_is_killed(tmp_path: Path) -> None:
    controller = start("controller", "start", "--dir", str(tmp_path / "controller"))
    processes = [controller]
    try:
        address = address_of(controller)
        options = ("ps", "start", "--name", "ps-0", "--controller", address, "--store", str(tmp_path / "store"))
        processes.append(start(*options))
        address_of(processes[-1])
        with client(f"adam://{address}/job") as ps:
            ps.register([np.full((300, 40), 2.0)], rule=adam.SGD(1.0), acks="durable")
            for _ in range(5):
                ps.push([np.ones((300, 40))])
            ps.wait()
            processes[-1].kill()
            processes.append(start(*options))
            address_of(processes[-1])
            ps.push([np.ones((300, 40))])
            ps.wait()
            assert (ps.pull()[0] == -4).all()
            with client(f"adam://{address}/job") as other:
                assert (other.register([np.zeros((300, 40))])[0] == -4).all()
            with client(f"adam://{address}/job") as other, pytest.raises(ConfigurationError, match="acks"):
                other.register([np.zeros((300, 40))], acks="applied")
            ps.close(end=True)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.communicate(timeout=30)


# --- training in two processes ----------------------------------------------------------------------------------------


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of A x = b, of a solution that is the same for all seeds."""
    solution = np.random.default_rng(0).standard_normal(20)
    rows = np.random.default_rng(seed).standard_normal((400, 20))
    return rows, rows @ solution


def train(url: str, seed: int, steps: int, ready: Any, done: Any) -> None:
    """A replica: pulls, takes the gradient on a batch of its own rows, pushes."""
    rows, wanted = problem(seed)
    generator = np.random.default_rng(seed)
    with client(url) as ps:
        params = ps.register({"x": np.zeros(20)}, rule=adam.Adagrad(0.5))
        ready.put(seed)
        step = 0
        while step < steps if steps else not done.is_set():
            chosen = generator.integers(0, len(rows), 32)
            error = rows[chosen] @ params["x"] - wanted[chosen]
            ps.push({"x": rows[chosen].T @ error / 32}, examples=32)
            params = ps.pull()
            step += 1


def test_two_processes_solve_least_squares_and_one_that_is_killed_does_not_stop_the_other(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Queue(), context.Event()
    processes = [
        context.Process(target=train, args=(url, seed, steps, ready, done)) for seed, steps in ((1, 0), (2, 600))
    ]
    with client(url) as ps:
        try:
            for process in processes:
                process.start()
            for _ in processes:
                ready.get(timeout=60)
            params = ps.register()
            threading.Event().wait(0.2)
            os.kill(processes[0].pid or 0, signal.SIGKILL)
            processes[1].join(60)
            assert processes[1].exitcode == 0
            params = ps.pull()
            assert np.abs(params["x"] - np.random.default_rng(0).standard_normal(20)).max() < 0.05
            ps.close(end=True)
        finally:
            done.set()
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join(30)
