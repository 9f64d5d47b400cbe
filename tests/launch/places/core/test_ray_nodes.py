"""Which of Ray's nodes can take a host, and what it is called."""

from __future__ import annotations

import pytest

from adamctl.config.names import is_name
from adamctl.errors import ConfigurationError
from adamctl.launch.places.core.ray_nodes import (
    RayNode,
    check_address,
    cores_of_each,
    fitting,
    host_name,
    living,
    too_few,
    without,
)

NODES = [RayNode("a", "one", 8), RayNode("b", "two", 16), RayNode("c", "three", 4)]


def test_nodes_are_those_that_ray_believes_alive() -> None:
    rows = [
        {"NodeID": "a", "Alive": True, "NodeManagerHostname": "one", "Resources": {"CPU": 8.0, "memory": 1.0}},
        {"NodeID": "b", "Alive": False, "NodeManagerHostname": "two", "Resources": {}},
        {"NodeID": "c", "Alive": True, "NodeManagerHostname": "head", "Resources": {}},
    ]
    assert living(rows) == [RayNode("a", "one", 8), RayNode("c", "head", 0)]


def test_a_host_needs_a_node_that_no_other_has() -> None:
    assert [node.node for node in fitting(NODES, 8)] == ["a", "b"]
    assert [node.node for node in fitting(NODES, 8, {"a"})] == ["b"]


@pytest.mark.parametrize(("hosts", "cores"), [(1, 16), (2, 8), (3, 4), (4, 1)])
def test_where_all_cores_are_wanted_each_host_has_as_many_as_all_can_have(hosts: int, cores: int) -> None:
    assert cores_of_each([*NODES, RayNode("d", "head", 0)], hosts) == cores


def test_too_few_nodes_are_counted() -> None:
    text = "expected 3 nodes of Ray with 8 free cores each; of its 3 nodes 2 have 8 cores, free or not"
    assert too_few(3, 8, NODES) == text


def test_no_two_hosts_of_a_run_have_one_name() -> None:
    used: set[str] = set()
    for expected in ("one", "one-2", "one-3"):
        name = host_name("one", used)
        assert name == expected
        used.add(name)


@pytest.mark.parametrize("hostname", ["", "a b\n", "x" * 300, "ü"])
def test_names_of_hosts_can_be_names_of_nodes(hostname: str) -> None:
    first = host_name(hostname, set())
    assert is_name(first)
    assert is_name(host_name(hostname, {first}))


def test_taken_nodes_are_left_out_by_their_label() -> None:
    assert without({"b", "a"}) == {"ray.io/node-id": "!in(a,b)"}
    assert without(()) == {}


def test_only_the_address_of_rays_client_is_refused() -> None:
    for address in ("auto", "10.0.0.1:6379"):
        check_address(address)
    with pytest.raises(ConfigurationError, match="ray job submit"):
        check_address("ray://10.0.0.1:10001")
