"""What --peers may say. The links themselves are tested by the clusters in test_cluster.py."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.controller.peers import parse_peers


def test_names_and_addresses() -> None:
    assert parse_peers("", "a") == {}
    assert parse_peers("a=h:1, b=tcp://h:2 c=[::1]:3", "b") == {
        "a": "tcp://h:1",
        "b": "tcp://h:2",
        "c": "tcp://[::1]:3",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=h:1,b=h:2", "expected 1, 3 or 5 controllers"),
        ("b=h:1", "expected this controller, --name a, among b"),
        ("a=h:1,a=h:2,b=h:3", "names a twice"),
        ("h:1,h:2,h:3", "expected name=host:port"),
        ("a=h,b=h:2,c=h:3", "expected tcp://host:port"),
    ],
)
def test_what_cannot_be_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_peers(text, "a")
