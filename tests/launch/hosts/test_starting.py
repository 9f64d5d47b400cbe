"""When a run on hosts speaks TLS, and what its agents are started with."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run, on_host
from adamctl.launch.hosts.placement import Placed
from adamctl.launch.hosts.starting import Secrets, trust_of
from adamctl.launch.hosts.table import KEEP_S, LOST_AFTER_S
from adamctl.launch.places.by_hand import command_for_people
from adamctl.launch.places.places import AgentCommand
from adamctl.model.description import Model, Softmax
from adamctl.roles.host.client import ANSWER_S, ORDERS_WAIT_S
from adamctl.roles.host.core.host_core import LEAVE_GRACE_S

INSECURE, CERTIFICATE = {"ADAMCTL_INSECURE": "1"}, {"ADAMCTL_TLS": "/tls/operator-anna"}


@pytest.mark.parametrize(
    ("engine", "bind", "environment", "tls", "expected"),
    [
        ("agents", "0.0.0.0", {}, False, "token"),
        ("slurm", "0.0.0.0", {}, False, "token"),
        ("ray", "10.0.0.1", {}, False, "token"),
        ("local", "127.0.0.1", {}, False, "network"),
        ("agents", "127.0.0.1", {}, False, "network"),
        ("local", "127.0.0.1", {}, True, "token"),
        ("agents", "0.0.0.0", INSECURE, False, "network"),
        ("agents", "0.0.0.0", INSECURE, True, "token"),
        ("agents", "0.0.0.0", CERTIFICATE, False, "certificates"),
        ("agents", "127.0.0.1", CERTIFICATE, False, "certificates"),
        ("agents", "0.0.0.0", {**CERTIFICATE, **INSECURE}, False, "network"),
        ("agents", "0.0.0.0", {**CERTIFICATE, **INSECURE}, True, "certificates"),
        ("slurm", "0.0.0.0", CERTIFICATE, False, "token"),
        ("local", "127.0.0.1", CERTIFICATE, False, "network"),
    ],
)
def test_beyond_loopback_there_is_tls_unless_the_network_is_trusted(
    engine: str, bind: str, environment: Mapping[str, str], tls: bool, expected: str
) -> None:
    assert trust_of(HostsAsked(2, 2, engine), bind, environment, tls) == expected


@pytest.mark.parametrize("role", ["worker", "ps", "data"])
def test_a_role_waits_for_its_name_until_an_agent_that_is_cut_off_has_ended_the_other_process(role: str) -> None:
    experiment = Experiment(name="small", model=Model((4,), (Softmax(2),)))
    run = Run(experiment, Path("/runs/e.toml"), Path("/runs/small/001"), Path("/s"), "none", "127.0.0.1", "front")
    arguments = on_host(run, Placed(role, f"{role}-1", "h1", 1), ("tcp://front:1",), {}).arguments
    assert "--wait-for-name" in arguments
    wait_s = float(arguments[arguments.index("--controller-deadline") + 1])
    assert wait_s > ORDERS_WAIT_S + ANSWER_S + KEEP_S + LEAVE_GRACE_S + LOST_AFTER_S


def test_without_the_package_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[tls\]'; or.*trust, give --insecure"):
        trust_of(HostsAsked(2, 2), "0.0.0.0", {}, False)
    assert trust_of(HostsAsked(2, 2, "local"), "127.0.0.1", {}, False) == "network"
    assert trust_of(HostsAsked(2, 2), "0.0.0.0", INSECURE, False) == "network"


def test_roles_beside_the_front_have_the_token_only_where_they_need_it() -> None:
    assert Secrets("a secret").of_roles == {"ADAMCTL_TOKEN": "a secret"}
    assert Secrets("a secret", "token", object()).of_roles == {}  # type: ignore[arg-type]


def test_what_is_typed_by_hand_names_what_the_agent_proves_itself_with() -> None:
    line = ("python3", "-m", "adamctl", "host", "start")
    assert command_for_people(AgentCommand(line, {"ADAMCTL_TOKEN": "a secret"})) == (
        "adamctl host start --token-file TOKEN_FILE --name NAME"
    )
    assert command_for_people(AgentCommand(line, {})) == "adamctl host start --tls-dir TLS_DIR --name NAME"
