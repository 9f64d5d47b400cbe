"""Processes on several hosts: network namespaces with addresses of their own, and nothing shared but the disk.

`python -m tests.e2e.on_hosts SCENARIO FOLDER` plays a scenario; `play` starts it where namespaces may be made.
Processes speak TCP alone, since sockets and memory would reach across namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adamctl.bench import namespaces

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "examples" / "digits.toml"
PATIENCE_S = 120.0
PORT = 7070


class Hosts:
    """Hosts by name, and the `adamctl` processes on them."""

    def __init__(self, links: namespaces.Namespaces, folder: Path) -> None:
        self.links, self.folder = links, folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.environment = {
            **os.environ,
            "ADAMCTL_TOKEN": secrets.token_hex(8),
            "ADAMCTL_TRANSPORT": "tcp",
            "OMP_NUM_THREADS": "1",
        }
        self.controller = f"{links.address('head')}:{PORT}"

    def start(self, host: str, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command on a host, in a folder of that host; what it prints goes to NAME.log."""
        place = self.folder / host
        place.mkdir(exist_ok=True)
        with open(self.folder / f"{name}.log", "w") as output:
            process = subprocess.Popen(
                [*self.links.prefix(host), sys.executable, "-m", "adamctl", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=place,
                env={**self.environment, "ADAMCTL_CONTROLLER": self.controller, "PYTHONPATH": str(ROOT)},
            )
        self.processes[name] = process
        return process

    def role(self, host: str, role: str, name: str, *arguments: str) -> None:
        """Starts a role that others reach at its host's address."""
        port = ("--port", str(PORT), "--dir", str(self.folder / name)) if role == "controller" else ()
        self.start(host, name, role, "start", "--name", name, "--bind", self.links.address(host), *port, *arguments)

    def ask(self, *arguments: str) -> Any:
        """Returns what a command on the head prints as JSON, None if it fails."""
        done = subprocess.run(
            [*self.links.prefix("head"), sys.executable, "-m", "adamctl", *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=self.folder,
            env={**self.environment, "ADAMCTL_CONTROLLER": self.controller, "PYTHONPATH": str(ROOT)},
        )
        return json.loads(done.stdout) if done.returncode in (0, 4) else None

    def members(self, *names: str) -> None:
        """Returns when these nodes have joined."""
        self.until(lambda: set(names) <= set(self.nodes()), *names)

    def nodes(self) -> dict[str, Any]:
        """Returns the status of each node that has joined."""
        return {node["node"]: node for node in (self.ask("status") or {"nodes": ()})["nodes"]}

    def until(self, condition: Callable[[], Any], *alive: str) -> Any:
        """Returns the first true value; raises AssertionError if processes end meanwhile or it takes too long."""
        end_s = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            ended = [name for name in alive if self.processes[name].poll() is not None]
            if ended or time.monotonic() > end_s:
                raise AssertionError(f"{ended or 'too late'}\n{self.logs()}")
            time.sleep(0.1)
        return value

    def finished(self, name: str, timeout_s: float = 240.0) -> str:
        """Returns what a process that must exit with 0 has printed."""
        code = self.processes[name].wait(timeout_s)
        if code != 0:
            raise AssertionError(f"{name} ended with {code}\n{self.logs()}")
        return self.said(name)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)[-3000:]}" for name in self.processes)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def join_from_another_host(hosts: Hosts) -> None:
    """Workers find the coordinator of a run that joins from another machine."""
    hosts.role("head", "controller", "controller-1")
    hosts.role("head", "ps", "ps-1", "--checkpoint-root", str(hosts.folder / "front"))
    hosts.role("head", "data", "data-1")
    hosts.role("head", "worker", "worker-1", "--threads", "1")
    hosts.members("ps-1", "data-1", "worker-1")
    experiment = (str(DIGITS), "--workers", "1", "--ps", "1", "--passes", "3")
    hosts.start("front", "train", "train", *experiment, "--join", hosts.controller, "--plain")
    hosts.finished("train")


SCENARIOS: dict[str, tuple[tuple[str, ...], Callable[[Hosts], None]]] = {
    "join": (("head", "front"), join_from_another_host),
}


def play(scenario: str, folder: Path, timeout_s: float = 300.0) -> None:
    """Plays a scenario inside a namespace of its own. Raises AssertionError with all logs if something fails."""
    command = [*namespaces.UNSHARE, sys.executable, "-m", "tests.e2e.on_hosts", scenario, str(folder)]
    environment = {**os.environ, namespaces.INSIDE: "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def main(arguments: Sequence[str]) -> None:
    names, scenario = SCENARIOS[arguments[0]]
    with namespaces.namespaces(names) as links:
        hosts = Hosts(links, Path(arguments[1]))
        try:
            scenario(hosts)
        finally:
            hosts.close()


if __name__ == "__main__":
    main(sys.argv[1:])
