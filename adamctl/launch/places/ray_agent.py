"""What an actor of Ray does on its node: it owns the process of one host agent. Ray's workers import nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from adamctl import __version__
from adamctl.roles.role_process import Lifeline, role_environment

TAIL_BYTES = 2000


class Agent:
    """Starts one agent, waits for its end and ends it. When this process is killed, the agent's lifeline ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = Lifeline()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def here(self) -> tuple[str, str, str]:
        """Returns the version of adamctl, the name of the machine, and Ray's number of the node."""
        import ray

        return __version__, socket.gethostname(), ray.get_runtime_context().get_node_id()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts the agent with this node's Python and returns its process number.

        Ray sets OMP_NUM_THREADS for its workers; roles divide the cores by themselves.
        """
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = subprocess.Popen(
            (sys.executable, *arguments, "--lifeline-fd", str(self._lifeline.read_fd)),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=role_environment({**ours, **environment}),
            pass_fds=(self._lifeline.read_fd,),
            start_new_session=True,
        )
        return self._process.pid

    def ended(self) -> tuple[int, str]:
        """Waits for the agent's end; returns its status and the end of what it wrote."""
        assert self._process is not None
        status = self._process.wait()
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), TAIL_BYTES, max(size - TAIL_BYTES, 0))
        return status, tail.decode(errors="replace")

    def stop(self, grace_s: float) -> None:
        """Ends the agent, and its roles with it; kills it if it takes longer than this."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._lifeline.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
