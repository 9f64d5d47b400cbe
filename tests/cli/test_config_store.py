"""--controller and --config-store: which one counts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from adamctl.cli import options
from adamctl.errors import ConfigurationError

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


def test_nothing_and_nonsense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="ADAMCTL_CONFIG_STORE"):
        found()
    for flag, value in (("--config-store", "a:1"), ("--controller", ETCD), ("--config-store", "etcd://")):
        with pytest.raises(ConfigurationError, match=r"expected .*etcd://"):
            found(flag, value)
