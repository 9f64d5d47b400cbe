"""The whole suite runs in two processes for each core; some files, or one test, in the process that was started.

Tests of whole clusters wait for leases and deadlines a third of their time, so more processes than cores cost little.
pytest-xdist does it, where it is installed. `-n` on the command line has its way: `-n 0` is one process. The tests of a
file run in one process, one after the other, so that what is set up once for a file is set up once; those of simulated
clusters share nothing, and go wherever there is time. Folders whose tests take long are begun first, so that at the end
no process is left alone with one of their files. Long suites (`-m slow`) have the machine for themselves.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

PROCESSES_MAX = 8
PROCESSES_PER_CORE = 2
FILES_MIN = 20
"""Fewer are done before other processes have started and read all tests."""
BEGUN_FIRST = ("sim", "e2e", "bench", "cli", "faults", "launch", "api")
SHARE_NOTHING = ("tests/sim/",)
TESTS = Path(__file__).parent
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Roles use one thread of BLAS; the others, made when numpy is imported, would only cost their start."""
settings.register_profile("no times", deadline=None)  # where all cores are busy, any example can take long
settings.load_profile("no times")
gc.disable()
"""Until all tests are collected: twelve thousand of them, which stay, and would be walked through again and again."""
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background. Tests press Ctrl-C in the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def files_named(arguments: Iterable[str]) -> int:
    """Returns how many files of tests the arguments name."""
    paths = [Path(argument.split("::")[0]) for argument in arguments]
    return sum(len(list(path.rglob("test_*.py"))) if path.is_dir() else 1 for path in paths)


def processes(arguments: Iterable[str], marks: str) -> int:
    """Returns in how many processes to run these arguments' tests, 0 for the one at hand."""
    several = marks == "not slow" and files_named(arguments) >= FILES_MIN and cores() > 1
    return min(cores() * PROCESSES_PER_CORE, PROCESSES_MAX) if several else 0


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    option = config.option
    asked = getattr(option, "numprocesses", 0) is not None or option.dist != "no" or option.tx
    if asked or option.usepdb or option.collectonly or hasattr(config, "workerinput"):
        return
    option.numprocesses = processes(config.args, option.markexpr)
    if option.numprocesses:
        option.dist, option.loadscopereorder = "loadfile", False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SHARE_NOTHING) else super()._split_scope(nodeid)

    return ByFile(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.path))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def turn(path: Path) -> int:
    """Returns when the file's turn comes; files of the same turn keep pytest's order."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return BEGUN_FIRST.index(folder) if folder in BEGUN_FIRST else len(BEGUN_FIRST)


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept about the runs of this machine: those of tests are not its user's, nor the other way round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAMCTL_STATE", str(tmp_path_factory.mktemp("state")))
        yield
