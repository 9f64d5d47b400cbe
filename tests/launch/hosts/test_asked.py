"""What flags say about hosts."""

from __future__ import annotations

import click
import pytest

from adamctl.cli import hosts_options
from adamctl.errors import ConfigurationError
from adamctl.launch.hosts.asked import HostsAsked, asked
from adamctl.launch.places.engines import ENGINES


def parsed(*arguments: str) -> HostsAsked | None:
    found: list[HostsAsked | None] = []

    @click.command()
    @hosts_options.hosts_options
    def command(**flags: object) -> None:
        found.append(hosts_options.hosts_asked(flags, default_hosts=3))
        assert set(flags) == set(hosts_options.HOSTS_FLAGS), "a command can tell these flags from its own"

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_without_a_flag_the_run_stays_here() -> None:
    assert parsed() is None


def test_a_number_and_a_range() -> None:
    assert parsed("--hosts", "4") == HostsAsked(4, 4)
    assert parsed("--hosts", "2:8", "--spares", "1") == HostsAsked(2, 8, spares=1)


def test_an_engine_alone_has_as_many_hosts_as_the_experiment_has_workers() -> None:
    found = parsed("--on", "slurm", "--slurm-partition", "short", "--time", "4h", "--cores", "16")
    assert found == HostsAsked(3, 3, "slurm", 16, 14_400.0, 0, {"slurm-partition": "short"})
    assert found.needs.cores == 16 and found.needs.time_s == 14_400.0


@pytest.mark.parametrize("text", ["0", "8:2", "2:", ":8", "2-8", "two", "10001"])
def test_what_is_no_number_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a number of hosts"):
        parsed("--hosts", text)


def test_flags_that_need_others() -> None:
    with pytest.raises(ConfigurationError, match="--spares: expected with --hosts or --on"):
        parsed("--spares", "1")
    with pytest.raises(ConfigurationError, match="--slurm-partition is for --on slurm; found --on local"):
        parsed("--on", "local", "--slurm-partition", "short")
    with pytest.raises(ConfigurationError, match="--cores: expected a number from 1"):
        parsed("--hosts", "2", "--cores", "0")
    with pytest.raises(ConfigurationError, match=r"--on: expected agents, local, ray, slurm; found 'locl'.*local"):
        parsed("--on", "locl")


def test_every_engine_can_be_asked_for() -> None:
    for name in ENGINES:
        found = asked(None, name, None, None, None, {}, 2)
        assert found is not None and found.engine == name


def test_the_same_hosts_again() -> None:
    given = ("--hosts", "2:8", "--on", "slurm", "--cores", "16", "--spares", "1", "--slurm-partition", "short")
    found = parsed(*given, "--time", "4h")
    assert found is not None and sorted(found.flags_again()) == sorted(given)
    assert HostsAsked(3, 3).flags_again() == ["--hosts", "3", "--on", "agents"]
