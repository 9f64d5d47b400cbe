"""A run over four network namespaces, each with an address of its own: one link is slow, one host is cut off for good.

Started inside a namespace of its own by test_hosts_in_namespaces.py:

    hosts_in_namespaces.py FOLDER EXPERIMENT PASSES 1|0

The last word says whether the network is trusted (ADAMCTL_INSECURE); if it is not, all of it is TLS.
Prints one line of JSON: the run's result, and what its front said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from adamctl.bench.namespaces import HUB, namespaces

HOSTS = ("a", "b", "c", "d")
SLOW, REMOVED = "b", "c"
SLOW_BYTES_PER_S = 2e6
WAIT_S = 240.0


def until(condition: Any, process: subprocess.Popen[str], what: str) -> Any:
    until_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        if process.poll() is not None or time.monotonic() > until_s:
            raise SystemExit(f"{what}: not in time\n{(process.stderr.read() if process.stderr else '')}")
        time.sleep(0.05)
    return found


def front_of(folder: Path) -> str:
    for file in (folder / "state" / "runs").glob("*.json"):
        text = file.read_text()
        if text.endswith("}") and (found := json.loads(text).get("front")):
            return str(found[0])
    return ""


def examples(folder: Path) -> int:
    lines = [line for file in folder.glob("runs/*/001/metrics.jsonl") for line in file.read_text().splitlines()]
    return max((json.loads(line).get("examples", 0) for line in lines), default=0)


def main() -> None:
    folder, experiment, passes, insecure = Path(sys.argv[1]), *sys.argv[2:5]
    environment = {
        **os.environ, "ADAMCTL_STATE": str(folder / "state"), "ADAMCTL_INSECURE": insecure, "ADAMCTL_DATA": "",
        "NO_COLOR": "1",
    }  # fmt: skip
    adamctl = (sys.executable, "-m", "adamctl")
    agents: list[subprocess.Popen[bytes]] = []
    with namespaces(HOSTS) as links:
        links.limit(SLOW, SLOW_BYTES_PER_S)
        command = [
            *adamctl, "train", experiment, "--plain", "--json", "--passes", passes,
            "--hosts", str(len(HOSTS)), "--bind", HUB, "--advertise", HUB,
            "--ps", "3", "--set", "cluster.replication=3", "--set", "cluster.data=2",
        ]  # fmt: skip
        train = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            front = until(lambda: front_of(folder), train, "the front")
            (token,) = folder.glob("runs/*/001/secrets/token")
            for name in HOSTS:
                root = folder / name
                root.mkdir()
                own = {**environment, "TMPDIR": str(root)}
                agents.append(
                    subprocess.Popen(
                        [
                            *links.prefix(name), *adamctl, "host", "start",
                            "--front", front, "--token-file", str(token), "--name", f"host-{name}",
                            "--root", str(root), "--advertise", links.address(name),
                            "--checkpoint-root", str(folder / "runs"),
                        ],
                        env=own, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    )
                )  # fmt: skip
            until(lambda: examples(folder) > 0, train, "training")
            links.cut(REMOVED)
            stdout, stderr = train.communicate(timeout=WAIT_S)
            print(json.dumps({"code": train.returncode, "result": stdout, "said": stderr}), flush=True)
        finally:
            for process in (train, *agents):
                if process.poll() is None:
                    process.kill()
                process.wait()


if __name__ == "__main__":
    main()
