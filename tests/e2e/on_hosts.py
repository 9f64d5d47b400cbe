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
from adamctl.net.address import INSECURE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "examples" / "digits.toml"
PATIENCE_S = 180.0
PORT = 7070


COMPILING = """
from adamctl.kernels.needed import COMMON_RULE_KERNELS
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.rules.make import load_rule
from adamctl.model.rule import RULE_NAMES, RuleConfig
load_if_compiled(COMMON_RULE_KERNELS)
for name in RULE_NAMES:
    load_rule(RuleConfig(name))
"""
"""So that the first of many servers does not compile kernels while a run waits for it."""
COUNTING = """
import sys, time
from pathlib import Path
import numpy as np
import adamctl as adam
controller, stop = sys.argv[1], Path(sys.argv[2])
ones = {name: np.ones((400, 300), np.float32) for name in "abcdef"}
with adam.ParameterClient(f"adam://{controller}/counts", deadline_s=120) as ps:
    ps.register({name: np.zeros_like(array) for name, array in ones.items()}, replication=3)
    acknowledged = 0
    while not stop.exists():
        ps.add(ones)
        ps.wait()
        acknowledged += 1
        print("acknowledged", acknowledged, flush=True)
        time.sleep(0.05)
    found = ps.pull()
    values = {float(value) for array in found.values() for value in np.unique(array)}
    assert values == {float(acknowledged)}, (values, acknowledged)
    ps.close(end=True)
print("all there", flush=True)
"""
"""Adds ones to a job of its own, one push at a time; each acknowledged one must be in the values, and no more."""


class Hosts:
    """Hosts by name, and the `adamctl` processes on them."""

    def __init__(self, links: namespaces.Namespaces, folder: Path) -> None:
        self.links, self.folder = links, folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.environment = {
            **os.environ,
            "ADAMCTL_TOKEN": secrets.token_hex(8),
            INSECURE_VARIABLE: "1",
            "ADAMCTL_TRANSPORT": "tcp",
            "OMP_NUM_THREADS": "1",
        }
        self.controller = f"{links.address('head')}:{PORT}"

    def start(self, host: str, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command on a host, in a folder of that host; what it prints goes to NAME.log."""
        return self.run(host, name, "-m", "adamctl", *arguments)

    def run(self, host: str, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python program likewise."""
        place = self.folder / host
        place.mkdir(exist_ok=True)
        with open(self.folder / f"{name}.log", "w") as output:
            process = subprocess.Popen(
                [*self.links.prefix(host), sys.executable, *arguments],
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

    def remove(self, host: str, *processes: str) -> None:
        """Takes a host away: its cable first, so that nothing says goodbye, then what ran on it."""
        self.links.cut(host)
        time.sleep(0.2)
        for name in processes:
            self.processes[name].kill()

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


def train_without_a_shared_folder(hosts: Hosts) -> None:
    """Servers have no folder of the run: the front's host writes checkpoints, and gives the one that a run begins from.

    The second run continues the first one with other servers, from a copy behind a URL; the third begins with its
    parameters. So does the fourth, which has no servers: its worker holds the parameters.
    """
    hosts.role("head", "controller", "controller-1")
    hosts.role("head", "data", "data-1")
    for number in (1, 2, 3):
        hosts.role(f"host-{number}", "ps", f"ps-{number}", "--checkpoint-root", f"/nowhere/{number}")
    hosts.role("host-1", "worker", "worker-1", "--threads", "1", "--checkpoint-root", "/nowhere")
    hosts.members("ps-1", "ps-2", "ps-3", "data-1", "worker-1")
    common = (str(DIGITS), "--workers", "1", "--join", hosts.controller, "--plain")
    runs = hosts.folder / "front" / "runs" / "digits"
    copies = f"file://{hosts.folder / 'bucket'}"
    copied = ("--set", f"train.checkpoint_url={copies}")
    hosts.start("front", "first", "train", *common, "--ps", "3", "--passes", "3", *copied)
    hosts.finished("first")
    (newest,) = sorted((runs / "001" / "checkpoints").iterdir())[-1:]
    names = {path.name for path in newest.iterdir()}
    assert names == {"manifest.json", *(f"shards-ps-{number}.adam" for number in (1, 2, 3))}, names
    hosts.start("front", "verify", "ckpt", "verify", str(hosts.folder / "bucket" / newest.name))
    hosts.finished("verify")
    before = json.loads((runs / "001" / "summary.json").read_text())
    hosts.start("front", "second", "train", *common, "--ps", "2", "--passes", "4", "--resume", copies, *copied)
    hosts.finished("second")
    after = json.loads((runs / "002" / "summary.json").read_text())
    assert after["examples"] > before["examples"], "it did not go on"
    warm = ("--set", f"train.warmstart_from={copies}", "--seed", "9")
    hosts.start("front", "third", "train", *common, "--ps", "3", "--passes", "1", *warm)
    hosts.finished("third")
    third = json.loads((runs / "003" / "summary.json").read_text())
    assert third["best_test_top1"] >= before["best_test_top1"] - 0.1 and third["best_test_top1"] > 0.5, third
    hosts.start("front", "fourth", "train", *common, "--ps", "0", "--passes", "1", *warm)
    hosts.finished("fourth")
    fourth = json.loads((runs / "004" / "summary.json").read_text())
    assert fourth["best_test_top1"] > 0.5, fourth
    (newest,) = sorted((runs / "004" / "checkpoints").iterdir())[-1:]
    assert {path.name for path in newest.iterdir()} == {"manifest.json", "shards-worker-1.adam"}


def lose_a_host(hosts: Hosts) -> None:
    """A host with two of six servers goes away in mid-training; then one server more leaves in order.

    Each part of the model has copies on three hosts, so two are left of each, and a third is made again.
    """
    hosts.role("head", "controller", "controller-1")
    hosts.role("head", "data", "data-1")
    servers = {f"ps-{host}{number}": f"host-{host}" for host in "abc" for number in (1, 2)}
    for name, host in servers.items():
        hosts.role(host, "ps", name, "--failure-domain", host, "--drain-on-term", "60", "--checkpoint-root", "/nowhere")
    hosts.role("head", "worker", "worker-1", "--threads", "1")
    hosts.members(*servers, "data-1", "worker-1")
    job = ("--workers", "1", "--ps", "6", "--passes", "400", "--set", "cluster.replication=3", "--plain")
    hosts.start("front", "train", "train", str(DIGITS), "--join", hosts.controller, *job)
    over = hosts.folder / "over"
    hosts.run("front", "counting", "-c", COUNTING, hosts.controller, str(over))

    def placed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (hosts.ask("shards") or {"buckets": []})["buckets"]
        return found

    def whole(least: int, *gone: str) -> bool:
        """Says whether every bucket has three copies on as many hosts as there are servers of."""
        buckets = placed()
        return bool(buckets) and all(
            len(bucket["in_sync"]) == 3
            and not bucket["learners"]
            and not set(gone) & set(bucket["in_sync"])
            and len({servers[node] for node in bucket["in_sync"]}) == least
            for bucket in buckets
        )

    def trained() -> int:
        """Returns how many pushes of the worker were acknowledged."""
        status = hosts.nodes().get("worker-1", {}).get("status", {})
        return int(status.get("pushes", 0))

    def go_on() -> None:
        """Returns when both jobs have got on."""
        before, counted = trained(), hosts.said("counting").count("\n")
        hosts.until(lambda: trained() > before + 20 and hosts.said("counting").count("\n") > counted + 5, *running)

    running = ("train", "counting")
    hosts.until(lambda: len({bucket["job"] for bucket in placed()}) == 2 and whole(3), *running)
    go_on()
    hosts.remove("host-b", *(name for name, host in servers.items() if host == "host-b"))
    go_on()
    hosts.until(lambda: whole(2, "ps-b1", "ps-b2"), *running)
    assert any("failure domains for 3 copies" in hosts.said(name) for name in servers), "nobody was told"
    hosts.processes["ps-c2"].terminate()
    assert hosts.processes["ps-c2"].wait(90) == 0, hosts.said("ps-c2")
    assert whole(2, "ps-b1", "ps-b2", "ps-c2"), placed()
    go_on()
    over.touch()
    assert "all there" in hosts.finished("counting")
    hosts.processes["train"].terminate()
    hosts.processes["train"].wait(60)
    assert "rolled back" not in hosts.said("train"), hosts.said("train")
    summary = json.loads((hosts.folder / "front" / "runs" / "digits" / "001" / "summary.json").read_text())
    assert summary["state"] == "stopped" and summary["examples"] > 0, summary


SCENARIOS: dict[str, tuple[tuple[str, ...], Callable[[Hosts], None]]] = {
    "join": (("head", "front"), join_from_another_host),
    "host-lost": (("head", "front", "host-a", "host-b", "host-c"), lose_a_host),
    "folders": (("head", "front", "host-1", "host-2", "host-3"), train_without_a_shared_folder),
}


def play(scenario: str, folder: Path, timeout_s: float = 600.0) -> None:
    """Plays a scenario inside a namespace of its own. Raises AssertionError with all logs if something fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", COMPILING], env=environment, timeout=timeout_s, check=True, cwd=ROOT)
    command = [*namespaces.UNSHARE, sys.executable, "-m", "tests.e2e.on_hosts", scenario, str(folder)]
    done = subprocess.run(
        command,
        env={**environment, namespaces.INSIDE: "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
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
