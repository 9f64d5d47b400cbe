"""The commands of `adamctl launch k8s`, as its pods run them, on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adamctl.launch.scripts.kubernetes import FRONT_PORT, kubernetes_description
from adamctl.launch.scripts.wanted import Wanted
from tests.e2e.conftest import EXAMPLES, Runner
from tests.launch.scripts.test_scripts import commands_of
from tests.ports import free_ports

HOSTS = 2
TOKEN = "of the secret that both jobs name"


@pytest.mark.slow
def test_its_front_and_its_agents_train(adamctl: Runner, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text((EXAMPLES / "digits.toml").read_text())
    text = kubernetes_description(Wanted("digits", "digits.toml", HOSTS, HOSTS), experiment.read_text(), "adamctl")
    (port,) = free_ports(1)
    for there, here in (
        ("/experiment/experiment.toml", str(experiment)),
        ('"/runs"', json.dumps(str(tmp_path / "runs"))),
        ('"/data"', json.dumps(str(tmp_path))),
        ("adamctl-digits:", "127.0.0.1:"),
        (str(FRONT_PORT), str(port)),
    ):
        text = text.replace(there, here)
    front, agent = commands_of(text, tmp_path)
    environment = {"ADAMCTL_TOKEN": TOKEN, "ADAMCTL_DATA": str(tmp_path), "ADAMCTL_STATE": str(tmp_path / "state")}
    loopback = ("--bind", "127.0.0.1", "--advertise", "127.0.0.1", "--passes", "2", "--json")
    train = adamctl.start(*front, *loopback, **environment)
    agents = [
        adamctl.start(*(word.replace("$(POD_NAME)", f"digits-agents-{number}") for word in agent), **environment)
        for number in range(HOSTS)
    ]
    code, out, stderr = train.wait()
    assert code == 0, stderr
    assert json.loads(out)["roles"]["worker"] == HOSTS
    for one in agents:
        assert one.wait(60)[0] == 0
