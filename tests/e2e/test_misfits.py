"""Workers that do not fit a run of partitions: it ends with exit code 3 and one message, or goes on without them."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command, Runner
from tests.e2e.test_by_hand import DIGITS, Cluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
LINES = "from tests.e2e.test_misfits import plant\nplant({what!r})\n"
START = ("worker", "start", "--threads", "1", "--name")


def plant(what: str) -> None:
    """In a worker: another version, which adds a field to what it hashes; another machine; less patience."""
    if "worker" not in sys.orig_argv or "start" not in sys.orig_argv:
        return
    if "version" in what:
        from adamctl.model.partition.plan import PartitionPlan

        PartitionPlan.hash = property(lambda plan: "another")  # type: ignore[method-assign, assignment]
    if "machine" in what:
        import platform

        platform.node = lambda: "elsewhere"
    if "hasty" in what:
        from adamctl.roles.worker.partition import links

        links.ATTACH_S, links.LATER_S = 2.0, 2.0


def planted(folder: Path, *what: str) -> dict[str, str]:
    place = folder / "-".join(what)
    place.mkdir()
    (place / "sitecustomize.py").write_text(LINES.format(what=what))
    return {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}


class Misfitting:
    """A cluster by hand, and a run of two partitions on it."""

    def __init__(self, adamctl: Runner) -> None:
        self.adamctl, self.cluster = adamctl, Cluster(adamctl)
        self.cluster.start("ps", "--name", "ps-1")
        self.cluster.start("data", "--name", "data-1")
        self.workers: list[Command] = []

    def worker(self, *flags: str, **environment: str) -> None:
        name = f"worker-{len(self.workers) + 1}"
        found = self.adamctl.start(*START, name, *flags, **self.cluster.environment, **environment)
        self.workers.append(found)

    def train(self, passes: int = 2) -> tuple[int, str]:
        settings = ("cluster.workers=2", "cluster.partitions=2", f"train.passes={passes}", "train.target=1.0")
        flags = [part for setting in settings for part in ("--set", setting)]
        folder = str(self.adamctl.folder / "run")
        command = self.cluster.start("coordinator", "--experiment", str(DIGITS), *flags, "--run-dir", folder)
        code, _, stderr = command.wait()
        assert "Traceback" not in stderr
        return code, stderr

    def fails(self, message: str) -> None:
        """One message, once, and nobody dies of it."""
        code, stderr = self.train()
        errors = [line for line in stderr.splitlines() if " ERROR " in line]
        assert code == 3 and len(errors) == 1 and re.search(message, errors[0]), stderr
        assert all(worker.process.poll() is None for worker in self.workers), "a worker has died of it"
        for worker in self.workers:
            worker.process.terminate()
            code, _, stderr = worker.wait(60)
            assert code in (0, 128 + signal.SIGTERM) and "Traceback" not in stderr, stderr


def test_a_worker_of_another_version(adamctl: Runner) -> None:
    one = Misfitting(adamctl)
    one.worker()
    one.worker(**planted(adamctl.folder, "version"))
    one.fails(r"this worker derives partition plan another, the coordinator \w+; both must run the same version")


def test_a_run_goes_on_with_a_spare_in_place_of_one_of_another_version(adamctl: Runner) -> None:
    one = Misfitting(adamctl)
    one.worker(**planted(adamctl.folder, "version"))
    one.worker()
    one.worker()
    code, stderr = one.train()
    assert code == 0, stderr


def test_a_worker_that_has_told_an_address_at_which_nobody_answers(adamctl: Runner) -> None:
    one = Misfitting(adamctl)
    one.worker(**planted(adamctl.folder, "hasty"))
    one.worker("--advertise", "127.0.0.9", **planted(adamctl.folder, "hasty", "machine"))
    one.fails(
        r"partition \d \(worker-2\) was not reached within 2 s.*127\.0\.0\.9:\d+.*; check the --bind and --advertise .*"
        r" as partition \d \(worker-1\) reports; so 3 replicas in a row could not begin"
    )


def test_a_worker_of_another_machine_where_only_a_unix_socket_is_offered(adamctl: Runner) -> None:
    one = Misfitting(adamctl)
    one.worker(ADAMCTL_TRANSPORT="unix")
    one.worker(**planted(adamctl.folder, "machine"))
    one.fails(
        r"partition \d \(worker-2\) has no usable address: .* it is on another machine; expected one for unix, as "
        r"ADAMCTL_TRANSPORT of worker-1 says, found tcp://.*; unset ADAMCTL_TRANSPORT of worker-1"
    )
