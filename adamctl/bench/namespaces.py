"""Processes in separate network namespaces, whose links can be cut as by pulling a cable, or made slow. Linux only.

Everything happens inside one more namespace, which an unprivileged user may create (`unshare --user --net`), so the
machine's own network is untouched and nothing is left behind. A link is a pair of virtual devices; a queue
without room at one end silently drops what is sent that way: no reset, no refusal, as with a real cable. A token bucket
at both ends gives each direction a rate of its own.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.net.address import INSECURE_VARIABLE
from adamctl.net.token_file import environment_token

INSIDE = "ADAMCTL_BENCH_NAMESPACE"
TOOLS = ("ip", "tc", "unshare", "nsenter")
HUB = "10.77.0.1"
"""Address at which all namespaces reach processes outside the servers' namespaces."""
STEP_S = 10.0
UNSHARE = ("unshare", "--user", "--map-root-user", "--net")
"""What runs a command in a network namespace of its own."""
CLONE_NEWNET = 0x40000000
"""From `sched.h`: a network namespace."""
BURST_S, BURST_BYTES_LEAST = 0.002, 128 << 10
"""What a link may send at once after a silence: a token bucket is refilled by a timer of some milliseconds, and a
segment of a local TCP connection has up to 64 KiB."""
CONGESTION_CONTROL = "reno"
"""Of TCP connections in a namespace: every Linux kernel has it, any user may choose it, and it fills a slow link. BBR,
some hosts' default, leaves a seventh of one empty that several connections share."""
QUEUE_S = 0.2
"""What a link holds back before it drops: with less, blocks of several senders to one receiver lose packets."""


TCP_SHARE = 1448 / 1514
"""Of what goes through an Ethernet link, what TCP carries."""


def missing() -> str:
    """Returns why namespaces are not available here; empty if they are."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or absent:
        return f"network namespaces need Linux and {', '.join(TOOLS)}; missing: {', '.join(absent) or 'Linux'}"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=STEP_S, check=False)
    return "" if done.returncode == 0 else f"cannot create a network namespace here: {done.stderr.strip()}"


def go_inside(arguments: Sequence[str], program: Sequence[str] = ("-m", "adamctl")) -> NoReturn:
    """Replaces this process by `adamctl ARGUMENTS` in its own namespace; signals and exit code pass through unchanged.

    Args:
        program: what Python runs, if not `adamctl`.

    Raises:
        ConfigurationError: namespaces are not available here.
    """
    problem = missing()
    if problem:
        raise ConfigurationError(problem)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*UNSHARE, sys.executable, *program, *arguments]
    os.execvpe(command[0], command, {**os.environ, **settings()})


def settings() -> dict[str, str]:
    """Returns the environment of a process inside, with a token, since no link there is loopback; nobody else is."""
    token = environment_token(os.environ) or secrets.token_hex(16)
    return {INSIDE: "1", "ADAMCTL_TOKEN": token, INSECURE_VARIABLE: "1"}


def is_inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def bring_up_loopback() -> None:
    """Lets processes inside, and outside of the namespaces with links, reach each other; only inside."""
    _run("ip", "link", "set", "lo", "up")


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[Namespaces]:
    """Creates one namespace per name, each linked to ours; only inside (`is_inside`)."""
    links = Namespaces(names)
    try:
        bring_up_loopback()
        _run("ip", "addr", "replace", f"{HUB}/32", "dev", "lo")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for name in names:
            links.make(name)
        yield links
    finally:
        links.close()


class Namespaces:
    """Namespaces by name; `namespaces` creates them. Each lives as long as the process that holds it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.communicate()
        for name in self._holders:
            with suppress(RunFailedError):  # it goes with the namespace
                _run("ip", "link", "del", self._device(name))
        self._holders.clear()

    def make(self, name: str) -> None:
        """Creates a namespace and its link to ours."""
        number = self._numbers[name]
        # It ends when our end of its input closes, also if this process is killed; Ctrl-C does not reach it.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in its namespace now
        holder.stdout.close()
        _run("ip", "link", "add", self._device(name), "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "addr", "add", f"10.77.{number}.1/24", "dev", self._device(name))
        _run("ip", "link", "set", self._device(name), "up")
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "route", "add", "default", "via", f"10.77.{number}.1"],
        ):
            _run(*self.prefix(name), *command)
        setting = f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
        _run(*self.prefix(name), "sh", "-c", setting)

    def _device(self, name: str) -> str:
        return f"link{self._numbers[name]}"

    def address(self, name: str) -> str:
        """Returns the address of a namespace."""
        return f"10.77.{self._numbers[name]}.2"

    def prefix(self, name: str) -> tuple[str, ...]:
        """Returns the prefix that makes a command run in a namespace."""
        return ("nsenter", "--target", str(self._holders[name].pid), "--net")

    def holder(self, name: str) -> int:
        """Returns the process whose network namespace it is, for `enter`."""
        return self._holders[name].pid

    def limit(self, name: str, bytes_per_s: float | None) -> None:
        """Gives a link so many bytes per second in each direction, or ends that."""
        if bytes_per_s is None:
            self.heal(name)
            return
        rate = (
            "root", "tbf", "rate", f"{round(bytes_per_s * 8)}bit", "latency", f"{QUEUE_S * 1000:g}ms",
            "burst", str(max(round(bytes_per_s * BURST_S), BURST_BYTES_LEAST)),
        )  # fmt: skip
        _run("tc", "qdisc", "replace", "dev", self._device(name), *rate)
        _run(*self.prefix(name), "tc", "qdisc", "replace", "dev", "eth0", *rate)

    def cut(self, name: str, *, inward: bool = True, outward: bool = True) -> None:
        """Drops everything sent to a namespace, from it, or both."""
        if inward:
            _run("tc", "qdisc", "replace", "dev", self._device(name), "root", "pfifo", "limit", "0")
        if outward:
            _run(*self.prefix(name), "tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit", "0")

    def heal(self, name: str) -> None:
        """Ends every cut and limit of a namespace."""
        for command in (
            ["tc", "qdisc", "del", "dev", self._device(name), "root"],
            [*self.prefix(name), "tc", "qdisc", "del", "dev", "eth0", "root"],
        ):
            with suppress(RunFailedError):  # it was not cut in that direction
                _run(*command)


def enter(holder: int) -> None:
    """Moves the calling thread, and those that it will start, to the network namespace of another process."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
    with open(f"/proc/{holder}/ns/net", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter a network namespace: {os.strerror(number)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, check=False)
    if done.returncode:
        raise RunFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
