"""The checks of `adamctl doctor`: each returns findings, with advice for those that are not ok."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

PACKAGES = (
    "numpy",
    "numexpr",
    "numba",
    "uvloop",
    "msgspec",
    "lmdb",
    "isal",
    "click",
    "rich",
    "psutil",
    "threadpoolctl",
)
OPTIONAL = {"Pillow": "image", "scikit-learn": "examples"}
NEEDED = frozenset(PACKAGES) - {"numba", "uvloop", "isal"}
DESCRIPTORS_WANTED = 1024
MEMORY_WANTED_BYTES = 1 << 30
DISK_WANTED_BYTES = 1 << 30

KERNELS = {
    "matrix products": {"numpy": "BLAS, at the processor's limit with any choice of kernels"},
    "convolution": {
        "numba": "directly in vector registers, without unfolding windows; fuses the pooling that follows",
        "numpy": "windows gathered by strided copies around a matrix product",
    },
    "untied convolution": {"numba": "one compiled pass", "numpy": "windows gathered, a product per place"},
    "max-pooling": {"numba": "one compiled pass", "numpy": "a comparison per position of the window"},
    "L2 pooling": {"numba": "one compiled pass", "numpy": "a pass per place of the window"},
    "local contrast": {"numba": "window sums in one compiled pass", "numpy": "a pass per place of the window"},
    "activations": {
        "numba": "bias and function in one compiled pass",
        "numexpr": "bias and function in one blocked pass",
        "numpy": "a pass each for bias and function",
    },
    "dropout": {"numba": "mask made and applied in one pass", "numpy": "a pass for each step of the hash"},
    "softmax, losses": {"numba": "loss, error and count fused", "numpy": "a pass for each step"},
    "gradient clipping": {"numba": "norms and scaling of all layers in one call", "numpy": "a call per layer"},
    "update rules": {
        "numba": "one fused pass over weights, state and gradient",
        "numexpr": "one blocked pass per expression",
        "numpy": "in blocks that stay in cache",
    },
    "accruing gradients": {"numba": "local update and accrual fused", "numpy": "a pass each"},
}
"""Kernel -> its implementations, each with a description."""

State = Literal["ok", "slow", "bad", "-"]


@dataclass(frozen=True)
class Finding:
    """One line: `ok`, `slow` (works worse than it could), `bad` (does not work) or `-` (information only)."""

    name: str
    state: State
    found: str
    advice: str = ""

    def values(self) -> dict[str, Any]:
        return asdict(self)


def all_findings() -> list[Finding]:
    """Runs every check, cheap ones first."""
    checks = (_versions, _machine, _limits, _network, _certificate, _shared_memory, _data, _blas, _threads, _kernels)
    return [finding for check in checks for finding in check()]


def _versions() -> Iterator[Finding]:
    yield Finding("adamctl", "ok", metadata.version("adamctl"))
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    for package in (*PACKAGES, *OPTIONAL):
        try:
            yield Finding(package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            if package in OPTIONAL:
                extra = f"'adamctl[{OPTIONAL[package]}]'"
                yield Finding(package, "-", "not installed", f"only if you want it: pip install {extra}")
            else:
                state: State = "bad" if package in NEEDED else "slow"
                yield Finding(package, state, "not installed", f"pip install {package}")


def _machine() -> Iterator[Finding]:
    import psutil

    from adamctl.kernels.threads import available_cores
    from adamctl.live.units import size

    cores, all_cores = available_cores(), os.cpu_count() or 1
    limited = f"; this process may use {cores}" if cores != all_cores else ""
    yield Finding("cores", "ok", f"{all_cores}{limited}")
    memory = psutil.virtual_memory()
    enough = memory.available >= MEMORY_WANTED_BYTES
    advice = "" if enough else "end other programs, or train with smaller batches and fewer workers"
    found = f"{size(memory.total)}, {size(memory.available)} free"
    yield Finding("memory", "ok" if enough else "slow", found, advice)
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        roomy = free >= MEMORY_WANTED_BYTES // 4
        advice = "" if roomy else "workers keep weights there: enlarge it (docker run --shm-size=2g)"
        yield Finding("shared memory", "ok" if roomy else "slow", f"{size(free)} free in {shared}", advice)
    free = shutil.disk_usage(".").free
    roomy = free >= DISK_WANTED_BYTES
    advice = "" if roomy else "run folders and checkpoints go here; name another place with --run-dir"
    yield Finding("disk", "ok" if roomy else "slow", f"{size(free)} free in {Path.cwd()}", advice)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_WANTED
    advice = "" if enough else f"raise it: ulimit -n {DESCRIPTORS_WANTED}"
    yield Finding("file descriptors", "ok" if enough else "slow", f"{soft} (at most {hard})", advice)


def _network() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            _exchange(server, socket.create_connection(server.getsockname(), timeout=2))
        yield Finding("loopback", "ok", "can listen on 127.0.0.1 and reach it")
    except OSError as error:
        advice = "roles on this machine find each other there: bring up the interface lo"
        yield Finding("loopback", "bad", f"127.0.0.1: {error}", advice)
    try:
        with tempfile.TemporaryDirectory(prefix="adamctl-") as folder, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/s")
            server.listen()
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(2)
            client.connect(f"{folder}/s")
            _exchange(server, client)
        yield Finding("Unix sockets", "ok", f"work in {tempfile.gettempdir()}")
    except OSError as error:
        advice = "set TMPDIR to a short path on a local disk; until then TCP is used"
        yield Finding("Unix sockets", "slow", f"in {tempfile.gettempdir()}: {error}", advice)


def _certificate() -> Iterator[Finding]:
    from adamctl.errors import ConfigurationError
    from adamctl.net.address import TLS_VARIABLE
    from adamctl.net.tls.credentials import load
    from adamctl.net.tls.expiry import duration

    folder = os.environ.get(TLS_VARIABLE, "")
    if not folder:
        yield Finding("certificate", "-", "none", f"between machines: docs/tls.md; set {TLS_VARIABLE} to its folder")
        return
    try:
        loaded = load(Path(folder))
    except ConfigurationError as error:
        yield Finding("certificate", "bad", str(error), f"adamctl tls check {folder}")
        return
    warning = loaded.lifetime.warning(time.time())
    advice = f"adamctl tls renew {folder}" if warning else ""
    found = f"{loaded.identity} {warning or 'is valid for ' + duration(loaded.lifetime.left_s(time.time()))}"
    yield Finding("certificate", "slow" if warning else "ok", found, advice)


def _shared_memory() -> Iterator[Finding]:
    from adamctl.errors import ConfigurationError, RemoteError
    from adamctl.net import shared_memory
    from adamctl.net.address import TRANSPORT_VARIABLE, chosen_kind
    from adamctl.net.regions import RegionQuota, RegionTable
    from adamctl.wire.messages import MemoryRegisterRequest

    name, way = "parameters by", "Unix socket"
    try:
        kind = chosen_kind()
        forced = f"; {TRANSPORT_VARIABLE}={kind}" if kind != "auto" else ""
        if not shared_memory.SUPPORTED or kind in ("tcp", "unix"):
            advice = "" if forced else "memory is shared between processes on Linux only"
            yield Finding(name, "-", f"{'TCP' if kind == 'tcp' else way} between roles on this machine{forced}", advice)
            return
        memory = shared_memory.SharedMemory(1)
        place = memory.find(memory.array(1))
        if place is None:
            raise MemoryError("memory cannot be shared: memfd_create is forbidden here")
        region, (ours, theirs) = place.region, socket.socketpair()
        with ours, theirs:
            request = MemoryRegisterRequest(region.number, region.device, region.descriptor, region.size_bytes)
            RegionTable(RegionQuota(region.size_bytes), 1).register(ours, request)
        memory.close()
        yield Finding(name, "ok", f"shared memory between roles on this machine{forced}")
    except ConfigurationError as error:
        yield Finding(name, "bad", str(error), f"unset {TRANSPORT_VARIABLE}, or correct it")
    except (RemoteError, MemoryError) as error:
        advice = f"a {way} is used instead, at about half the rate; mount /proc, allow memfd_create"
        yield Finding(name, "slow", str(error), advice)


def _exchange(server: socket.socket, client: socket.socket) -> None:
    with client:
        server.settimeout(2)
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"?")
            if accepted.recv(1) != b"?":
                raise OSError("a byte that was sent did not arrive")


def _data() -> Iterator[Finding]:
    from adamctl.config.load import data_folders

    folders = data_folders(os.environ)
    if not folders:
        yield Finding("ADAMCTL_DATA", "-", "not set", "set it to the folder of your data sets, or give --data DIR")
    for folder in folders:
        if Path(folder).is_dir():
            names = sorted(entry.name for entry in Path(folder).iterdir() if not entry.name.startswith("."))
            yield Finding("ADAMCTL_DATA", "ok", f"{folder}: {', '.join(names[:8]) or 'empty'}")
        else:
            yield Finding("ADAMCTL_DATA", "slow", f"{folder} is not a folder", "correct it or make the folder")


def _blas() -> Iterator[Finding]:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    libraries = [entry for entry in threadpool_info() if entry.get("user_api") == "blas"]
    if not libraries:
        advice = "install numpy from its wheels; thread counts cannot be set for this library"
        yield Finding("BLAS", "slow", "not recognised", advice)
    for library in libraries:
        version = f"{library.get('internal_api')} {library.get('version')}"
        kind = library.get("architecture") or "?"
        yield Finding("BLAS", "ok", f"{version} for {kind}, {library['num_threads']} thread(s) here, 1 in each role")


def _threads() -> Iterator[Finding]:
    """NUMA nodes, and where a worker's and a server's threads would run if they had this machine to themselves."""
    from adamctl.kernels import threads

    nodes, binding = threads.read_nodes(), threads.chosen_binding()
    cores = sum(len(node.cores) for node in nodes)
    for node in nodes:
        yield Finding(f"node {node.number}", "ok", f"{len(node.cores)} core(s): {threads.shown(node.cores)}")
    forced = f" ({threads.VARIABLE}={binding})" if os.environ.get(threads.VARIABLE) else ""
    yield Finding("threads", "ok", f"{cores} would be {threads.describe(cores, nodes, binding)}{forced}")


def _kernels() -> Iterator[Finding]:
    from adamctl.kernels import backend

    offered = backend.installed()
    forced = os.environ.get(backend.VARIABLE)
    chosen = backend.choose()
    why = f"because {backend.VARIABLE} says so" if forced else "the fastest of those installed"
    fast = chosen == "numba"
    advice = "" if fast else "pip install numba: fused kernels are several times faster"
    yield Finding("kernels", "ok" if fast else "slow", f"{chosen}, {why} ({', '.join(offered)})", advice)
    for name, reasons in KERNELS.items():
        implementation = chosen if chosen in reasons else "numpy"
        yield Finding(f"  {name}", "ok", f"{implementation}: {reasons[implementation]}")
