"""Makes what a version keeps on disk, with what must be in it: for a new version, never for an old one again.

    python tests/golden/make_stores.py WORKTREE tests/golden/stores/NAME

runs the code in WORKTREE (`.` for this tree) as processes of their own: a controller, a parameter server with a store,
a job of a client, a small training run with checkpoints, and, where that version has it, a prepared data set. The
servers are killed, so that their folders are as a crash leaves them. A folder that exists is not written again.

The folder then has `controller`, `ps` (the store), `checkpoint`, `prepared`, `made_by.json` (the commit, the port
of the controller, the job) and `values.npz`: what a client of that version pulled and what its `export` wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

JOB = "kept"
EXPERIMENT = """\
name = "small"
[data]
format = "npz"
source = "./small.npz"
[model]
input = [4, 4, 1]
[[model.layers]]
type = "softmax"
units = 3
[optimizer]
lr = 0.5
[train]
passes = 2
[cluster]
threads = 1
"""
CLIENT = f"""\
import sys, numpy as np, adamctl as adam
values = {{"w": np.arange(60, dtype=np.float32).reshape(20, 3), "b": np.full(7, 0.5, np.float32)}}
with adam.ParameterClient("adam://" + sys.argv[1] + "/{JOB}") as client:
    params = client.register(values, rule=adam.Momentum(0.25, momentum=0.5), acks="durable")
    for number in range(3):
        client.push({{"w": np.full((20, 3), number + 1.0, np.float32), "b": np.arange(7, dtype=np.float32)}})
    client.wait()
    params = client.pull()
    np.savez(sys.argv[2], **{{"job." + name: array for name, array in params.items()}})
"""
WAIT_S = 120.0


class Version:
    """The code of one tree, as processes."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self._environment = {
            **os.environ, "PYTHONPATH": str(tree), "ADAMCTL_STATE": str(scratch / "state"),
            "ADAMCTL_CHECKPOINT_ROOT": str(scratch), "ADAMCTL_DATA": str(scratch),
        }  # fmt: skip
        self._scratch = scratch
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._scratch / f"{len(self.started)}.log").open("wb")
        command = [sys.executable, "-m", "adamctl", *arguments]
        self.started.append(subprocess.Popen(command, cwd=self._scratch, env=self._environment, stdout=log, stderr=log))
        return self.started[-1]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self._scratch, env=self._environment, capture_output=True, text=True,
            timeout=WAIT_S,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:4])}: {done.stderr}")
        return done.stdout

    def members(self, controller: str, count: int) -> None:
        """Waits until so many nodes are members."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                nodes = json.loads(self.run("-m", "adamctl", "status", "--json", "--controller", controller))["nodes"]
                if len(nodes) >= count:
                    return
            except SystemExit:
                pass
            time.sleep(0.2)
        raise SystemExit(f"no {count} members within {WAIT_S:g} s")

    def kill(self) -> None:
        for process in self.started:
            process.send_signal(signal.SIGKILL)
            process.wait()


def write_data(path: Path) -> None:
    """Pictures of one bright row, by which they are told apart."""
    random = np.random.default_rng(1)
    labels = np.arange(160) % 3
    pictures = random.integers(0, 120, (160, 4, 4, 1), np.uint8)
    pictures[np.arange(160), labels] += 100
    np.savez(path, x_train=pictures, y_train=labels, x_test=pictures[:30], y_test=labels[:30])


def make(version: Version, scratch: Path, out: Path, port: int) -> None:
    """Makes everything in `scratch` and copies what is kept to `out`."""
    controller = f"127.0.0.1:{port}"
    (scratch / "small.toml").write_text(EXPERIMENT)
    write_data(scratch / "small.npz")
    (scratch / "client.py").write_text(CLIENT)
    version.start("controller", "start", "--name", "c-1", "--port", str(port), "--dir", str(scratch / "controller"))
    member = ("--controller", controller, "--name")
    version.start("ps", "start", *member, "ps-1", "--store", str(scratch / "ps"), "--loss-window-s", "0.05")
    version.start("data", "start", *member, "data-1", "--data", str(scratch))
    version.start("worker", "start", *member, "worker-1", "--threads", "1")
    version.members(controller, 3)
    version.run("client.py", controller, "values.npz")
    version.run("-m", "adamctl", "train", "small.toml", "--join", controller, "--workers", "1", "--ps", "1", "--plain")
    version.kill()
    (run,) = (scratch / "runs" / "small").iterdir()
    newest = sorted((run / "checkpoints").iterdir())[-1]
    version.run("-m", "adamctl", "export", str(newest), "parameters.npz")
    values = dict(np.load(scratch / "values.npz")) | {
        f"checkpoint.{name}": array for name, array in np.load(scratch / "parameters.npz").items()
    }
    out.mkdir(parents=True)
    np.savez_compressed(out / "values.npz", **values)
    for name, source in (("controller", "controller"), ("ps", "ps"), ("checkpoint", newest)):
        shutil.copytree(scratch / source, out / name)
        (out / name / "lock").unlink(missing_ok=True)
    try:
        version.run("-m", "adamctl", "data", "prepare", "small.npz", "--to", "prepared", "--shape", "4,4,1")
        shutil.copytree(scratch / "prepared", out / "prepared")
    except SystemExit as error:
        print(f"no prepared set: {error}")


def main(tree: Path, out: Path) -> None:
    """Makes the folder. Raises SystemExit: it exists, or the version does not do what is asked of it."""
    if out.exists():
        raise SystemExit(f"{out} exists: it is what a version really wrote, so it is never written again")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        version = Version(tree.resolve(), Path(scratch))
        try:
            make(version, Path(scratch), out, port)
        finally:
            version.kill()
    (out / "made_by.json").write_text(json.dumps({"commit": commit, "port": port, "job": JOB}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
