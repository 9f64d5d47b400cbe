"""Which processes a run needs and how to start each: a pure function of the experiment and of paths."""

from __future__ import annotations

from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.config.urls import is_any_url, is_url, without_file_scheme
from adamctl.roles.role_process import RoleCommand

CONTROLLER = "controller"
COORDINATOR = "coordinator"
STORES = "stores"
CLIENT_DEADLINE_S = 60.0


def local_roles(
    experiment: Experiment, experiment_file: Path, run_folder: Path, private_folder: Path, cores: int, resume: str
) -> tuple[RoleCommand, ...]:
    """Returns every role of a run on this machine, in start order.

    Args:
        experiment: what to run; `cluster` says how many of each role.
        experiment_file: the file from which the coordinator reads the same experiment.
        run_folder: for checkpoints, metrics, the summary, and parameter servers' stores during the run.
        private_folder: for Unix sockets and the controller's store; short, and accessible only to this user. It holds
            the controller's socket, whose name is known in advance, so that all roles can start at once.
        cores: number of this machine's cores, shared by the workers' threads.
        resume: `auto`, `none` or a path.
    """
    cluster = experiment.cluster
    common = ("--socket-folder", str(private_folder))
    member = ("--controller", controller_address(private_folder), *common)
    threads = max(cores // cluster.workers, 1) if cluster.threads == "auto" else cluster.threads
    if experiment.train.in_step:
        threads = 1
    commands = [
        RoleCommand("controller", CONTROLLER, ("--dir", str(private_folder / "controller"), "--port", "0", *common)),
        coordinator_role(
            experiment_file, run_folder, resume, (*member, "--job", experiment.name, "--tended"), COORDINATOR
        ),
    ]
    apply_threads = () if cluster.apply_threads == "auto" else ("--apply-threads", str(cluster.apply_threads))
    roots = checkpoint_roots(experiment, run_folder, resume)
    own = roots if experiment.has_own_parameters else ()
    commands += [
        RoleCommand("worker", f"worker-{number}", ("--threads", str(threads), *own, *member))
        for number in range(1, cluster.workers + 1)
    ]
    commands += [
        RoleCommand("ps", node, (*apply_threads, *_store(experiment, run_folder, node), *roots, *member))
        for node in (f"ps-{number}" for number in range(1, cluster.ps + 1))
    ]
    places = data_roots(experiment) or ("--data-root", "/nowhere")
    commands += [RoleCommand("data", f"data-{number}", (*places, *member)) for number in range(1, cluster.data + 1)]
    return tuple(commands)


def checkpoint_roots(experiment: Experiment, run_folder: Path, resume: str) -> tuple[str, ...]:
    """Returns the flags that let who holds parameters write into the run folder, and read what the run starts from."""
    given = (resume, experiment.train.warmstart_from)
    begun_from = [path for path in given if path not in ("", "auto", "none") and not is_any_url(path)]
    folders = [run_folder.parent if resume == "auto" else run_folder, *(Path(path).expanduser() for path in begun_from)]
    return tuple(part for folder in folders for part in ("--checkpoint-root", str(folder.absolute())))


def data_roots(experiment: Experiment) -> tuple[str, ...]:
    """Returns the flags that let data servers read the run's data and nothing else; empty if it names no folder."""
    source = without_file_scheme(experiment.data.source)
    return tuple(
        part
        for root in (*data_folders(experiment), *([source] if is_url(source) else []))
        for part in ("--data-root", root)
    )


def data_folders(experiment: Experiment) -> tuple[str, ...]:
    """Returns the folders, or the file, in which a run's data are looked for; its own path first, if it names one."""
    source = without_file_scheme(experiment.data.source)
    places = [source] if not is_url(source) and is_path(source) else []
    return tuple(str(Path(place).expanduser().absolute()) for place in (*places, *experiment.data.search))


def is_path(source: str) -> bool:
    """Returns whether a source of data names a path, and no set that is looked up by its name."""
    return "/" in source or source.startswith("~")


def _store(experiment: Experiment, run_folder: Path, node: str) -> tuple[str, ...]:
    """Returns a parameter server's flags for keeping its part of the model on disk."""
    if experiment.cluster.store == "none":
        return ()
    return ("--store", str(run_folder / STORES / node), *loss_window(experiment))


def loss_window(experiment: Experiment) -> tuple[str, ...]:
    """Returns the flags that say how much of a server's part of the model may differ from its disk."""
    cluster = experiment.cluster
    return ("--loss-window-s", str(cluster.loss_window_s), "--loss-window-bytes", str(cluster.loss_window_bytes))


def coordinator_role(
    experiment_file: Path, run_folder: Path, resume: str, arguments: tuple[str, ...], node: str
) -> RoleCommand:
    """Returns the coordinator of a run, here or on an existing cluster."""
    own = ("--experiment", str(experiment_file), "--run-dir", str(run_folder), "--resume", resume)
    return RoleCommand("coordinator", node, (*own, *arguments))


def controller_address(private_folder: Path) -> str:
    """Returns the controller's address for a run on this machine (`adamctl.roles.process` names the socket)."""
    return f"unix://{private_folder / CONTROLLER}.s"
