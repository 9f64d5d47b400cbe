"""What `adamctl launch` prints, word by word, and that those who are to read it can."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.cli.launch import launch
from adamctl.cli.main import run
from adamctl.launch.scripts import systemd
from adamctl.launch.scripts.kubernetes import dns_label
from adamctl.launch.scripts.ray import ray_script
from adamctl.launch.scripts.systemd import ROLES, systemd_unit
from adamctl.launch.scripts.wanted import Wanted
from tests.cli.test_commands_in_documents import parse
from tests.launch.scripts.golden_texts import DIGITS, FOLDER, SMALL, texts

TEXTS = texts()
SCRIPTS = [name for name in TEXTS if name.endswith(".sh")]
DEADLINE_S = 60


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_they_were(name: str) -> None:
    """A change is looked at and then written down by `python -m tests.launch.scripts.golden_texts`."""
    assert TEXTS[name] == (FOLDER / name).read_text()


def test_no_text_is_left_that_nobody_prints() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(TEXTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_scripts(name: str) -> None:
    shell = "bash" if TEXTS[name].startswith("#!/bin/bash") else "sh"
    done = subprocess.run([shell, "-n"], input=TEXTS[name], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")


RAY = f"""#!{sys.executable}
import os, shlex, subprocess, sys
join = subprocess.list2cmdline if os.environ["OLD"] else shlex.join
sys.exit(subprocess.call(join(sys.argv[sys.argv.index("--") + 1 :]), shell=True))
"""
"""Makes a command line of the words after `--` as programs of Ray do, and has a shell run it."""


@pytest.mark.parametrize("wanted", [DIGITS, SMALL], ids=["digits", "small"])
@pytest.mark.parametrize("folder", ["nets", "my nets"])
@pytest.mark.parametrize("old", ["", "yes"])
def test_the_job_of_ray_starts_the_training_in_its_folder(
    tmp_path: Path, wanted: Wanted, folder: str, old: str
) -> None:
    nets = tmp_path / folder
    nets.mkdir()
    for program, text in (("ray", RAY), ("adamctl", '#!/bin/sh\necho "$PWD"\nprintf "%s\\n" "$@"\n')):
        path = tmp_path / program
        path.write_text(text)
        path.chmod(0o755)
    done = subprocess.run(
        ["sh", "-s", "http://head:8265"],
        input=ray_script(wanted, nets),
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "OLD": old},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines()[:3] == [str(nets), "train", wanted.experiment], done.stderr


def test_a_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    units = []
    for role in ROLES:
        units.append(tmp_path / f"adamctl-{role}.service")
        units[-1].write_text(systemd_unit(role, shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=DEADLINE_S)
    ours = [line for line in done.stderr.splitlines() if "adamctl-" in line]
    assert ours == []


@pytest.mark.parametrize("role", ROLES)
def test_only_an_agent_that_ended_well_is_started_again(role: str) -> None:
    """It ends with each run, and its machine is there for the next one."""
    restart = "always" if role == "host" else "on-failure"
    assert f"Restart={restart}" in systemd_unit(role, "/bin/adamctl").splitlines()


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_keeps_its_role_in_bounds(role: str) -> None:
    lines = systemd_unit(role, "/bin/adamctl").splitlines()
    assert {
        "Type=notify",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "LoadCredential=token:/etc/adamctl/token",
        "LimitNOFILE=65536",
        "SuccessExitStatus=143",  # of a role that was stopped
        f"WorkingDirectory=%t/adamctl-{role}",  # not /, below which a data server could read everything
    } <= set(lines)
    assert any(line.startswith("WatchdogSec=") for line in lines)


def test_units_of_one_machine_have_names_of_their_own() -> None:
    found = [re.search(r" --name (\S+)", systemd_unit(role, "/bin/adamctl")) for role in ROLES]
    names = [match and match[1] for match in found]
    assert names == ["controller-%l", "ps-%l", "data-%l", "worker-%l", "%l"], "the last one is the machine itself"
    assert "adamctl tls create ps ps-MACHINE" in systemd_unit("ps", "/bin/adamctl"), "a certificate is for the name"


def test_the_command_line_names_the_roles_that_have_units() -> None:
    assert launch.ROLES == systemd.ROLES


def test_names_of_kubernetes_are_labels() -> None:
    assert dns_label("adamctl-My_Net.v2-") == "adamctl-my-net-v2"


@pytest.mark.parametrize(
    "words",
    [("slurm", "EXP"), ("ray", "EXP"), ("k8s", "EXP"), ("systemd", "ps")],
)
def test_what_is_not_printed_is_refused_and_nothing_is_started(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = str(Path(__file__).parents[3] / "examples" / "digits.toml")
    line = ["launch", *(experiment if word == "EXP" else word for word in words)]
    assert run(line) == 2
    assert "give --print" in capsys.readouterr().err
    assert run([*line, "--print"]) == 0
    assert "adamctl" in capsys.readouterr().out


def test_an_experiment_that_is_wrong_is_said_before_it_waits_in_a_queue(tmp_path: Path) -> None:
    assert run(["launch", "slurm", str(tmp_path / "none.toml"), "--print"]) == 2


@pytest.mark.parametrize("engine", ["slurm", "ray", "k8s"])
def test_hosts_speak_tls_unless_the_network_is_said_to_be_trusted(
    engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAMCTL_INSECURE", raising=False)
    line = ["launch", engine, str(Path(__file__).parents[3] / "examples" / "digits.toml"), "--print"]
    assert run(line) == 0
    assert "--insecure" not in capsys.readouterr().out
    assert run([*line, "--insecure"]) == 0
    assert "--insecure" in capsys.readouterr().out
    monkeypatch.setenv("ADAMCTL_INSECURE", "1")
    assert run(line) == 0
    assert "--insecure" in capsys.readouterr().out


BEGINS = re.compile(r"(?:^|ExecStart=\S*/|&& exec )adamctl ((?:train|\w+ start) .*?)(?: &)?$", re.MULTILINE)
LISTED = re.compile(r'\["adamctl".*?\]', re.DOTALL)


def commands_of(text: str, token: Path) -> list[list[str]]:
    """Returns the arguments of each `adamctl` that a text starts, with values for what is known only where it runs."""
    for name, value in (("\\\n", " "), ("'\"'\"'", '"'), ("%d/token", str(token)), ("$SLURM_CPUS_PER_TASK", "2")):
        text = text.replace(name, value)
    return [
        *(shlex.split(line.removesuffix("'")) for line in BEGINS.findall(text)),
        *(json.loads(line)[1:] for line in LISTED.findall(text)),
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_commands_are_taken_by_adamctl(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAMCTL_CONTROLLER", raising=False)
    token = tmp_path / "token"
    token.write_text("a secret\n")
    token.chmod(0o600)
    found = commands_of(TEXTS[name], token)
    assert len(found) == (2 if name.startswith("k8s") else 1)
    for words in found:
        parse(tuple(words), whole=True)
