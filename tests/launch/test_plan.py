"""Which processes a run needs."""

from pathlib import Path

import pytest

from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.launch.plan import controller_address, local_roles
from adamctl.model.description import Model, Softmax
from adamctl.roles.role_process import RoleCommand

PRIVATE = Path("/tmp/adamctl-x")


def commands(cluster: ClusterConfig, cores: int = 8) -> dict[str, RoleCommand]:
    experiment = Experiment(name="small", model=Model((4,), (Softmax(2),)), cluster=cluster)
    planned = local_roles(experiment, Path("/r/experiment.toml"), Path("/r"), PRIVATE, cores, "auto")
    return {command.node: command for command in planned}


def option(command: RoleCommand, name: str) -> str:
    return command.arguments[command.arguments.index(name) + 1]


def test_as_many_of_each_role_as_the_experiment_says() -> None:
    names = list(commands(ClusterConfig(workers=2, ps=3, data=1)))
    assert sorted(names) == [
        "controller",
        "coordinator",
        "data-1",
        "ps-1",
        "ps-2",
        "ps-3",
        "worker-1",
        "worker-2",
    ]
    assert names[0] == "controller"


def test_cores_are_divided_over_workers() -> None:
    assert option(commands(ClusterConfig(workers=3))["worker-1"], "--threads") == "2"
    assert option(commands(ClusterConfig(workers=3), cores=2)["worker-2"], "--threads") == "1"
    assert option(commands(ClusterConfig(workers=2, threads=5))["worker-1"], "--threads") == "5"


def test_everybody_knows_where_the_controller_will_be() -> None:
    planned = commands(ClusterConfig())
    assert controller_address(PRIVATE) == "unix:///tmp/adamctl-x/controller.s"
    for node in ("ps-1", "data-1", "worker-1", "coordinator"):
        assert option(planned[node], "--controller") == controller_address(PRIVATE)
    assert "--controller" not in planned["controller"].arguments


def test_the_coordinator_is_told_the_run() -> None:
    coordinator = commands(ClusterConfig())["coordinator"]
    assert option(coordinator, "--experiment") == "/r/experiment.toml"
    assert option(coordinator, "--run-dir") == "/r"
    assert option(coordinator, "--resume") == "auto"
    assert option(coordinator, "--job") == "small"


def test_every_flag_is_one_the_role_has() -> None:
    from adamctl.cli.role import common_parameters, find_role

    common = {name for parameter in common_parameters() for name in parameter.opts}
    for command in commands(ClusterConfig(apply_threads=2)).values():
        own = {f"--{option.name}" for option in find_role(command.role).options}
        assert {argument for argument in command.arguments if argument.startswith("--")} <= own | common


def test_parameter_servers_keep_their_part_in_the_run_folder_unless_told_not_to() -> None:
    planned = commands(ClusterConfig(ps=2, loss_window_s=0.5, loss_window_bytes=7_000_000))
    assert option(planned["ps-2"], "--store") == "/r/stores/ps-2"
    assert option(planned["ps-2"], "--loss-window-s") == "0.5"
    assert option(planned["ps-2"], "--loss-window-bytes") == "7000000"
    assert "--store" not in commands(ClusterConfig(store="none"))["ps-1"].arguments


@pytest.mark.parametrize(
    ("source", "roots"),
    [
        ("s3://bucket/set", ["s3://bucket/set"]),
        ("file:///data/set", ["/data/set"]),
        ("/data/set", ["/data/set"]),
        ("mnist", ["/nowhere"]),
    ],
)
def test_data_servers_may_read_the_runs_data_and_nothing_else(source: str, roots: list[str]) -> None:
    data = DataConfig(format="npz", source=source)
    experiment = Experiment(name="small", model=Model((4,), (Softmax(2),)), data=data)
    planned = local_roles(experiment, Path("/r/experiment.toml"), Path("/r"), PRIVATE, 8, "auto")
    (flags,) = [command.arguments for command in planned if command.role == "data"]
    assert [flags[place + 1] for place, flag in enumerate(flags) if flag == "--data-root"] == roots
