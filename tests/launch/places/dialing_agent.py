"""Stands for a host agent: dials its front, says who and where it is, and ends with the connection or its lifeline.

`--ignore-term` makes it deaf to SIGTERM, `--fail` lets it end at once with status 7 and a last line, `--alone` with
status 3 when its front has gone.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--front")
    parser.add_argument("--name")
    parser.add_argument("--lifeline-fd", type=int)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    if given.fail:
        print("error: no such folder", file=sys.stderr)
        return 7
    if given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    host, _, port = given.front.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.settimeout(None)
        told = {
            "name": given.name,
            "pid": os.getpid(),
            "node": os.environ.get("SLURMD_NODENAME", ""),
            "token": os.environ.get("ADAMCTL_TOKEN", ""),
            "threads": os.environ.get("OMP_NUM_THREADS", ""),
            "cores": len(os.sched_getaffinity(0)),
        }
        connection.sendall(json.dumps(told).encode() + b"\n")
        watched = [connection] if given.lifeline_fd is None else [connection, given.lifeline_fd]
        select.select(watched, [], [])
    return 3 if given.alone else 0


if __name__ == "__main__":
    sys.exit(main())
