"""Clients for other frameworks: what is refused, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, HandshakeError, NotFiniteError, UnreachableError
from adamctl.model.rule import RuleConfig
from tests.api.cluster_for_tests import TOKEN, client


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
        ["h:1/x", "adam://h:1", "adam://h:1/", "adam://h/x", "adam://h:1/a/b", "http://h:1/x", "adam://h:1/a~2",
         "adam://[h:1/x", "etcd://[h:1/x", None, b"adam://h:1/x"],
    )  # fmt: skip
    def test_an_address_that_is_none(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="expected"):
            client(wrong)

    @pytest.mark.parametrize("wrong", [-1, 0, 0.0, float("nan"), float("inf"), None, "5"])
    def test_a_deadline_that_is_none(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"deadline_s: expected a finite number .* above 0; found"):
            client("adam://127.0.0.1:1/x", deadline_s=wrong)
        with pytest.raises(ConfigurationError, match="deadline_s"):
            adam.AsyncParameterClient("adam://127.0.0.1:1/x", deadline_s=wrong)

    def test_a_job_that_is_not_there(self, url: str) -> None:
        with client(url, deadline_s=2.0) as ps, pytest.raises(UnreachableError, match="found none"):
            ps.register()

    def test_more_servers_than_there_are(self, url: str) -> None:
        with client(url, deadline_s=2.0) as ps, pytest.raises(UnreachableError, match="3 parameter servers"):
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

    def test_what_a_fork_must_not_push_is_not_copied_to_where_its_parent_sees_it(self, url: str) -> None:
        """What is on its way lies in memory that servers, and so forked processes, share."""
        with client(url) as ps:
            ps.register([np.zeros(3)])
            ps.add([np.ones(3)])
            ps.wait()
            (buffer,) = ps._client._arrays._free
            ps._pid += 1
            for push in (ps.push, ps.add):
                with pytest.raises(ConfigurationError, match="another process"):
                    push([np.full(3, 999.0)])
            ps._pid -= 1
            assert (buffer[:3] == 1).all()
            ps.close(end=True)


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
        (lambda: adam.LBFGS(), "'lbfgs' is a batch algorithm, which evaluates a whole data set"),
        (lambda: adam.Momentum(0.1, 1.5), "momentum"),
        (lambda: RuleConfig("nothing"), "expected one of"),
    ],
)
def test_rules_that_servers_cannot_carry_out(url: str, rule: Callable[[], Any], words: str) -> None:
    with client(url) as ps, pytest.raises(ConfigurationError, match=words):
        ps.register([np.ones(3)], rule=rule())
