"""--controller and --config-store: which one counts."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from adamctl.cli import options
from adamctl.cli.main import application
from adamctl.cli.role import find_role
from adamctl.errors import ConfigurationError
from adamctl.net.address import DEFAULT_CONTROLLER
from adamctl.roles.process import CommonOptions

ETCD = "etcd://e:1,f:2"


def found(*arguments: str, **environment: str) -> tuple[str, ...]:
    """Returns the addresses that a command with these flags and variables uses."""
    seen: list[tuple[str, ...]] = []

    @click.command()
    @options.controller_option
    def command(controller: tuple[str, ...]) -> None:
        seen.append(options.addresses(controller))

    clean: dict[str, str | None] = {"ADAMCTL_CONTROLLER": None, "ADAMCTL_CONFIG_STORE": None}
    result = CliRunner().invoke(command, list(arguments), env={**clean, **environment}, catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return seen[0]


def test_either_from_a_flag_or_a_variable() -> None:
    assert found("--controller", "a:1,b:2") == ("tcp://a:1", "tcp://b:2")
    assert found(ADAMCTL_CONTROLLER="a:1 b:2") == ("tcp://a:1", "tcp://b:2")
    assert found("--config-store", ETCD) == (ETCD,)
    assert found(ADAMCTL_CONFIG_STORE=ETCD) == (ETCD,)


def test_a_flag_beats_a_variable() -> None:
    assert found("--controller", "a:1", ADAMCTL_CONFIG_STORE=ETCD) == ("tcp://a:1",)
    assert found("--config-store", ETCD, ADAMCTL_CONTROLLER="a:1") == (ETCD,)


def test_both_of_a_kind_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="found both"):
        found("--controller", "a:1", "--config-store", ETCD)
    with pytest.raises(ConfigurationError, match="found both"):
        found(ADAMCTL_CONTROLLER="a:1", ADAMCTL_CONFIG_STORE=ETCD)


def test_where_nothing_is_said_a_controller_is_where_it_listens_by_default(tmp_path: Path) -> None:
    assert find_role("controller").default_port == 7070
    assert found(ADAMCTL_STATE=str(tmp_path)) == CommonOptions().controller == ("tcp://127.0.0.1:7070",)
    assert found(ADAMCTL_CONTROLLER="", ADAMCTL_CONFIG_STORE="", ADAMCTL_STATE=str(tmp_path)) == (DEFAULT_CONTROLLER,)


def test_nonsense_is_refused() -> None:
    for flag, value in (("--config-store", "a:1"), ("--controller", ETCD), ("--config-store", "etcd://")):
        with pytest.raises(ConfigurationError, match=r"expected .*etcd://"):
            found(flag, value)


def commands(command: click.Command = application, path: str = "adamctl") -> Iterator[tuple[str, click.Command]]:
    """Yields every command with its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def test_every_command_that_takes_controllers_takes_an_etcd_cluster_in_their_place() -> None:
    seen = 0
    for name, command in commands():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        if flags & {"--controller", "--join"}:
            assert "--config-store" in flags, name
            seen += 1
    assert seen > 10


def test_without_aiohttp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "aiohttp" else find_spec(name))
    result = CliRunner().invoke(application, ["status", "--config-store", "etcd://127.0.0.1:1"])
    assert isinstance(result.exception, ConfigurationError)
    assert "pip install 'adamctl[etcd]'" in str(result.exception)


def test_aiohttp_is_imported_where_etcd_is_used_and_nowhere_else() -> None:
    code = (
        "import sys, adamctl; adamctl.ParameterClient\n"
        "import adamctl.launch.train, adamctl.roles.driver, adamctl.roles.ps.server, adamctl.cli.cluster.state\n"
        "assert not {'aiohttp', 'adamctl.roles.controller.etcd.client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_ctrl_c_ends_a_command_that_waits_for_etcd() -> None:
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"etcd://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "adamctl", "data", "start", "--port", "0", "--config-store", url]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            assert any("waiting for etcd" in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 130
        finally:
            process.kill()
            process.wait()
