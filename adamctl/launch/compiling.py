"""Compiles the kernels that a run needs before its roles start, in parallel, each once per machine and version.

Otherwise roles would compile them on first use, one after another, with half a minute of silence.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.kernels import kernel_cache, needed
from adamctl.kernels.backend import choose
from adamctl.optimizers.configured import rule_of

NOTE_INTERVAL_S = 10.0
PROCESSES_MAX = 8
ONE_PROCESS_KERNELS = 4
"""Fewer kernels than this per process are not worth the second that a process takes to start."""


def kernels_of(experiment: Experiment, forced: str | None = None) -> tuple[str, ...]:
    """Returns the compiled kernels that a run uses, slowest to compile first; none if numba is not used."""
    if choose(forced) != "numba":
        return ()
    train = experiment.train
    conversions = needed.conversion_kernels((train.wire_push, train.wire_pull))
    steps = needed.step_kernels(
        experiment.model,
        clipping=experiment.optimizer.clip_norm is not None,
        weighted=train.class_weights != "none",
    )
    augment = experiment.data.augment
    warps = needed.WARP_KERNELS if augment.warps or augment.changes_sound else ()
    return (*steps, *needed.rule_kernels(rule_of(experiment)), *conversions, *warps)


def compile_kernels(
    experiment: Experiment, environment: Mapping[str, str], cores: int, note: Callable[[str], None]
) -> int:
    """Compiles the kernels that are not in the cache yet; returns their number.

    A kernel that fails to compile here is left to the role that uses it, which reports why.

    Raises:
        ConfigurationError: the environment forces a kind of kernels that is not available.
    """
    try:
        kernel_cache.prepare()
        missing = kernel_cache.unmarked(kernels_of(experiment, environment.get("ADAMCTL_KERNELS") or None))
    except OSError as error:
        raise ConfigurationError(f"found no writable folder for compiled kernels: {error}") from error
    if missing:
        processes = max(1, min(cores, PROCESSES_MAX, len(missing) // ONE_PROCESS_KERNELS))
        _Compilers(missing, environment, processes, note).run()
    return len(missing)


class _Compilers:
    """Processes that each receive the next kernel when they finish one."""

    def __init__(
        self, names: Sequence[str], environment: Mapping[str, str], processes: int, note: Callable[[str], None]
    ) -> None:
        self._names, self._note = list(names), note
        self._total, self._done = len(names), 0
        where = {**environment, kernel_cache.VARIABLE: str(kernel_cache.folder())}
        line = (sys.executable, "-m", "adamctl.kernels.compile_ahead")
        self._processes = [
            subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=where,
                start_new_session=True,
            )
            for _ in range(processes)
        ]  # fmt: skip

    def run(self) -> None:
        began_s = noted_s = time.monotonic()
        self._note(f"compiling {self._total} kernels, each once on this machine")
        try:
            with selectors.DefaultSelector() as selector:
                for process in self._processes:
                    assert process.stdout is not None
                    selector.register(process.stdout, selectors.EVENT_READ, process)
                    self._give(process)
                while selector.get_map():
                    for key, _ in selector.select(max(noted_s + NOTE_INTERVAL_S - time.monotonic(), 0.1)):
                        if not self._took(key.data):
                            selector.unregister(key.fileobj)
                    if time.monotonic() - noted_s >= NOTE_INTERVAL_S and self._done < self._total:
                        noted_s = time.monotonic()
                        so_far = f"{self._done} of {self._total} kernels in {noted_s - began_s:.0f} s so far"
                        self._note(f"compiled {so_far}")
        finally:
            self._end()
        self._note(f"compiled {self._done} kernels in {time.monotonic() - began_s:.1f} s")

    def _took(self, process: subprocess.Popen[bytes]) -> bool:
        """Reads a process's report that a kernel is compiled; returns whether it continues."""
        assert process.stdout is not None
        if not process.stdout.readline():
            return False
        self._done += 1
        return self._give(process)

    def _give(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.stdin is not None
        if not self._names:
            process.stdin.close()
            return False
        try:
            process.stdin.write(f"{self._names.pop(0)}\n".encode())
            process.stdin.flush()
        except OSError:  # it has ended; a role will report what is wrong
            return False
        return True

    def _end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            if not process.stdin.closed:  # it is still compiling, and we were interrupted
                process.kill()
                with suppress(OSError):
                    process.stdin.close()
            process.stdout.close()
            process.wait()
