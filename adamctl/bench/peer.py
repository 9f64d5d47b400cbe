"""Talks to a program that measures another system: one JSON object per line, each answered with one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from adamctl.errors import ConfigurationError, RunFailedError

FOLDER = Path(__file__).resolve().parent / "peers"
END_S = 5.0
IMPORT_S = 60.0


def require_interpreter(python: str) -> None:
    """Checks that a peer's interpreter is there, whatever packages it has. Raises ConfigurationError."""
    if shutil.which(python) is None:
        raise ConfigurationError(f"--peer-python: expected an interpreter; found {python!r}: there is no such program")


def require(python: str, package: str) -> None:
    """Checks that an interpreter has a package, before anything is measured.

    Raises:
        ConfigurationError: it has not, or it is not an interpreter.
    """
    try:
        found = subprocess.run(
            [python, "-c", f"import {package}"], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"--peer-python: expected an interpreter; found {python!r}: {error}") from None
    if found.returncode:
        why = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigurationError(
            f"--peer-python: expected an interpreter that has {package}; found {python!r}: {why}; name another"
        )


class PeerProcess:
    """One running peer; a context manager that ends it.

    Args:
        python: the interpreter to run it in.
        program: a file's name in `peers/`.
        threads: most threads for its numerical libraries.
    """

    def __init__(self, python: str, program: str, threads: int) -> None:
        self._received = b""
        # Not a pipe: an unread pipe would fill up and block the peer.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        try:
            self._process = subprocess.Popen(
                [python, str(FOLDER / program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                bufsize=1,
                env=environment,
            )
        except OSError as error:
            raise ConfigurationError(
                f"--peer-python: expected an interpreter; found {python!r}: {error.strerror}"
            ) from None

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request whose answer `receive` waits for, so that several peers can work at once."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Returns the answer.

        Raises:
            ConfigurationError: the program ended, for example because its package is not installed.
            RunFailedError: it did not answer in time.
        """
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._received:
            ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise RunFailedError(f"the peer did not answer within {timeout_s:.0f} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise ConfigurationError(self._why())
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout_s)

    def _why(self) -> str:
        self._process.wait(END_S)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        last = lines[-1] if lines else "it ended without any output"
        return f"the peer cannot run: {last}; name an interpreter that has its package with --peer-python"
