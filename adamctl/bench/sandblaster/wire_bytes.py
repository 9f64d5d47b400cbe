"""The bytes of an evaluation over TCP, counted by the kernel, against those of parameters and gradients alone.

A whole run, with all its processes, is in a network of its own, whose only device is the loopback: what that has
received is all that any of them has sent, heartbeats and the headers of TCP and IP included. Two runs that differ only
in their number of evaluations differ by so many evaluations, whatever else they send.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from adamctl.bench import namespaces
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.errors import RunFailedError
from adamctl.model.layout import ELEMENT_BYTES

WORKERS = 2
RUN_S = 1200.0
LOG_LINES = 10
DEVICE = "lo:"
_INSIDE = 'ip link set lo up || exit; "$@" > out 2> err; code=$?; cat /proc/net/dev > devices; exit $code'


def measure_bytes(
    workload: Workload, passes: Sequence[int], batch: int, data: Sequence[str],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the bytes of an evaluation, over (workers + bundles) x those of the parameters.

    Args:
        passes: two numbers of evaluations.
        batch: examples of one.

    Raises:
        RunFailedError: a run failed.
    """
    problem = namespaces.missing()
    if problem:
        return {"cannot": problem}
    found = []
    for count in passes:
        progress(f"{workload.name}: {count} evaluations in a network of their own")
        found.append(_run(workload, count, min(batch, workload.examples), data))
    (fewer, fewer_bytes), (more, more_bytes) = found
    evaluations = more["batch"]["evaluations"] - fewer["batch"]["evaluations"]
    bundles = more["batch"]["bundles_total"]
    return ratio_of(more_bytes - fewer_bytes, evaluations, bundles, workload.parameters) | {
        "network": workload.name, "backups": more["batch"]["backups"]
    }  # fmt: skip


def ratio_of(sent_bytes: int, evaluations: int, bundles: int, parameters: int) -> dict[str, Any]:
    """Returns what is reported of so many bytes in so many evaluations: each worker pulls, each bundle is pushed."""
    least_bytes = (WORKERS + bundles) * ELEMENT_BYTES * parameters
    return {
        "ratio": sent_bytes / evaluations / least_bytes, "evaluation_bytes": sent_bytes / evaluations,
        "least_bytes": least_bytes, "bundles": bundles, "workers": WORKERS, "evaluations": evaluations,
    }  # fmt: skip


def _run(workload: Workload, passes: int, batch: int, data: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Returns the result of a run, and the bytes that its network has carried."""
    settings = {
        "optimizer.batch": batch, "cluster.workers": WORKERS, "cluster.threads": 1, "train.evaluate_every": passes + 1
    }  # fmt: skip
    with TemporaryDirectory(prefix="adamctl-bench-") as name:
        folder = Path(name)
        (folder / "bench.toml").write_text(workload.toml(passes, settings))
        command = [sys.executable, "-m", "adamctl", "train", "bench.toml", "--json", "--run-dir", str(folder / "runs")]
        command += [part for one in data for part in ("--data", str(Path(one).absolute()))]
        try:
            done = subprocess.run(
                [*namespaces.UNSHARE, "sh", "-c", _INSIDE, "sh", *command], cwd=folder, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=RUN_S, env={**os.environ, "ADAMCTL_TRANSPORT": "tcp"}, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunFailedError(f"{' '.join(command)}: did not end within {RUN_S:g} s") from None
        if done.returncode:
            said = (folder / "err").read_text(errors="replace") if (folder / "err").exists() else done.stderr.decode()
            last = "\n".join(said.splitlines()[-LOG_LINES:])
            raise RunFailedError(f"{' '.join(command)}: exit status {done.returncode}:\n{last}")
        result: dict[str, Any] = msgspec.json.decode((folder / "out").read_bytes())
        return result, received_bytes((folder / "devices").read_text())


def received_bytes(devices: str) -> int:
    """Returns what the loopback has received, from the text of the kernel's table of devices.

    Raises:
        RunFailedError: it is not in there.
    """
    for line in devices.splitlines():
        words = line.split()
        if words and words[0] == DEVICE:
            return int(words[1])
    raise RunFailedError(f"expected a device {DEVICE} in the table of devices; found:\n{devices}")
