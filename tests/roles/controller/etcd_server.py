"""Starts etcd for tests: real processes on free loopback ports, with their data in a folder of the test."""

from __future__ import annotations

import itertools
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_ports

ENOUGH = ("--max-txn-ops=8192", "--max-request-bytes=33554432")
"""What the conformance suite needs: 2,000 keys in one transaction."""
START_S = 30.0
_roots = itertools.count()


def needs_etcd() -> str:
    """Returns the path of the etcd binary; skips the test where there is none."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed; pip install 'adamctl[etcd]'")
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("there is no etcd on PATH; on Debian: apt-get install etcd-server")
    return found


class EtcdCluster:
    """One etcd server or several that form a cluster."""

    def __init__(
        self, folder: Path, members: int, flags: Sequence[str], certificate: Path | None, key: Path | None
    ) -> None:
        self._binary = needs_etcd()
        self._folder = folder
        self._flags = tuple(flags)
        self._secure = "s" if certificate is not None else ""
        self._tls = ssl.create_default_context(cafile=certificate)
        if certificate is not None:
            assert key is not None
            self._tls.load_cert_chain(certificate, key)
            trusted = f"--trusted-ca-file={certificate}"
            self._flags += (f"--cert-file={certificate}", f"--key-file={key}", trusted, "--client-cert-auth")
        ports = free_ports(2 * members)
        self.clients = [f"127.0.0.1:{port}" for port in ports[:members]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"etcd{self._secure}://{','.join(self.clients)}"

    def start(self, number: int) -> None:
        """Starts a member, anew with what it had if it ran before."""
        client, peer = f"http{self._secure}://{self.clients[number]}", self._peers[number]
        arguments = {
            "--name": f"etcd-{number}",
            "--data-dir": str(self._folder / f"etcd-{number}"),
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": ",".join(f"etcd-{other}={url}" for other, url in enumerate(self._peers)),
        }
        command = [self._binary, *(part for pair in arguments.items() for part in pair), *self._flags]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"etcd-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_all(self) -> None:
        for number in range(len(self.clients)):
            self.start(number)
        for number in range(len(self.clients)):
            self.wait_for(number)

    def wait_for(self, number: int) -> None:
        """Returns when a member knows a leader and answers."""
        until_s = time.monotonic() + START_S
        while True:
            try:
                url = f"http{self._secure}://{self.clients[number]}/health"
                with urllib.request.urlopen(url, timeout=1.0, context=self._tls) as answer:
                    if b"true" in answer.read():
                        return
            except OSError:
                pass
            if time.monotonic() > until_s or self._processes[number].poll() is not None:
                log = (self._folder / f"etcd-{number}.log").read_text()
                raise AssertionError(f"etcd did not start:\n{log[-3000:]}")
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def pause(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@contextmanager
def etcd_cluster(
    folder: Path,
    members: int = 1,
    flags: Sequence[str] = ENOUGH,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Iterator[EtcdCluster]:
    """Yields a cluster that answers; its processes end with the block.

    With a certificate, which is its own authority, it speaks TLS, and only to those who have the same.
    """
    cluster = EtcdCluster(folder, members, flags, certificate, key)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop()


def a_root() -> str:
    """Returns a prefix that no other test uses."""
    return f"/test-{next(_roots)}"
