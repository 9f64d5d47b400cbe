"""The parameter server end to end: real servers, a real controller, and the workers' clients, on loopback.

Every line is reported with its limit, measured in the same run: plain blocking sockets for push and pull, half the rate
of matrix products for factors, memory bandwidth for cases without network. Plain sockets are also measured with our
socket options. Rounds of all sides alternate, and the best of each counts. Pushes really add, and at the end the sums
are checked; each pull is checked to be of one version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, Self

from adamctl.bench.kernels.measuring import memory_limit, product_limit
from adamctl.bench.namespaces import TCP_SHARE
from adamctl.bench.net.plain_sockets import BLOCK_BYTES, PlainSockets
from adamctl.bench.ps.client import FACTORS, WEIGHTS, ClientProcess, Done, Order, all_do
from adamctl.bench.ps.cluster import PsCluster
from adamctl.bench.ps.job import FactorsSize, check_block, factors_record, weights_record
from adamctl.bench.ps.local import CASES, LocalRate, LocalServer
from adamctl.bench.ps.torch import MODES as TORCH_MODES
from adamctl.bench.ps.torch import TorchRpc
from adamctl.bench.report import make_report
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WIRE_TYPES, WireType

PACKAGES = ("adamctl", "numpy", "numba", "uvloop", "msgspec")
MODES = ("push", "pull", "both", "factors", "local")
TRANSPORTS = ("auto", "tcp", "unix", "shared")
ADAM_G_UPDATES_PER_S = 13.0
"""Adam's rate for a server with 16 cores, including factors (4.3.2)."""
PLAIN_BYTES = 2_000_000_000
PLAIN_BYTES_PER_S = 4e9  # for rounds that are shorter than plain sockets take for PLAIN_BYTES
LIMIT_S = 0.3
COPIES = {"push": 3.0, "pull": 2.0, "both": 2.5}
"""Bytes moved in memory per byte pushed (read it, read and write the value) or pulled (one copy)."""


@dataclass(frozen=True)
class PsSettings:
    """What to measure: every combination of `servers`, `apply_threads` and `clients`, in each of `modes`.

    Attributes:
        model_bytes: size of the weights.
        block_bytes: size of the shards that weights are cut into.
        wire: type of values on the wire.
        transport: "auto" lets clients choose.
        link_bytes_per_s: of each server's link, in each direction; None: servers are on loopback. With it, all goes
            over TCP, and only inside (`adamctl.bench.namespaces`).
        rounds, seconds: rounds of every side, and the length of a round of ours.
        peer_python: an interpreter with PyTorch, to compare with its RPC; None: no comparison.
    """

    modes: tuple[str, ...] = MODES
    apply_threads: tuple[int, ...] = (1,)
    clients: tuple[int, ...] = (1,)
    servers: tuple[int, ...] = (1,)
    model_bytes: int = 100_000_000
    block_bytes: int = 1 << 20
    wire: WireType = "float32"
    transport: str = "auto"
    link_bytes_per_s: float | None = None
    rounds: int = 5
    seconds: float = 1.0
    peer_python: str | None = None
    factors: FactorsSize = field(default_factory=FactorsSize)

    def __post_init__(self) -> None:
        """Raises ConfigurationError for settings that cannot be measured."""
        unknown = [mode for mode in self.modes if mode not in MODES]
        if unknown or not self.modes:
            raise ConfigurationError(
                f"--mode: expected some of {', '.join(MODES)}; found {', '.join(unknown) or 'none'}"
            )
        for flag, value in (
            ("--rounds", self.rounds),
            ("--seconds", self.seconds),
            ("--model-megabytes", self.model_bytes / 1e6),
        ):
            if not 0 < value < inf:
                raise ConfigurationError(f"{flag}: expected more than 0; found {value:g}")
        if self.wire not in WIRE_TYPES:
            raise ConfigurationError(f"--dtype: expected one of {', '.join(WIRE_TYPES)}; found {self.wire!r}")
        if self.transport not in TRANSPORTS:
            raise ConfigurationError(f"--transport: expected one of {', '.join(TRANSPORTS)}; found {self.transport!r}")
        if self.link_bytes_per_s is not None and (self.transport != "tcp" or set(self.modes) - set(self.networked)):
            raise ConfigurationError("--link: expected --transport tcp, and modes that send; found others")
        if self.networked:
            check_block(self.block_bytes)
        weights_record(self.model_bytes, self.block_bytes, 1)
        if self.peer_python is not None:
            self._check_peer()

    def _check_peer(self) -> None:
        what = "PyTorch's RPC is measured with one client and one server"
        for flag, counts in (("--clients", self.clients), ("--servers", self.servers)):
            if 1 not in counts:
                found = f"found {flag} {', '.join(map(str, counts))}; add 1 to it, or leave --vs out"
                raise ConfigurationError(f"--vs torch-rpc: expected 1 in {flag}, as {what}; {found}")
        if not set(self.modes) & set(TORCH_MODES):
            raise ConfigurationError(
                f"--vs torch-rpc: expected a mode that PyTorch's RPC has too, one of {', '.join(TORCH_MODES)}; found "
                f"{', '.join(self.modes)}; add one with --mode, or leave --vs out"
            )

    @property
    def networked(self) -> tuple[str, ...]:
        """The modes that need servers."""
        return tuple(mode for mode in self.modes if mode != "local")

    @property
    def plain_blocks(self) -> int:
        """Blocks of a round through plain sockets."""
        return max(int(min(PLAIN_BYTES, self.seconds * PLAIN_BYTES_PER_S)) // BLOCK_BYTES, 16)


def run_ps_benchmark(*settings: PsSettings, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measures each of the settings and returns the report that `adamctl bench ps-throughput --json` prints.

    Raises:
        ConfigurationError: PyTorch is requested but missing.
        RunFailedError: a process ended, or the values are not the sum of the pushes.
    """
    networked, local = list[dict[str, Any]](), dict[int, list[dict[str, Any]]]()
    report = make_report("ps-throughput", PACKAGES, ())
    for one in settings:
        if len(settings) > 1:
            progress(f"blocks of {one.block_bytes / 1024:g} KiB, {one.wire}, transport {one.transport}")
        results, torch_version = _measure_networked(one, progress)
        networked += results
        if torch_version:
            report["versions"]["torch"] = torch_version
        if (
            "local" in one.modes and one.block_bytes not in local
        ):  # nothing is sent: the other settings make no difference
            rows = [row for threads in one.apply_threads for row in _measure_local(one, threads, progress)]
            local[one.block_bytes] = _with_speed_up(rows)
    report["results"] = networked + [row for rows in local.values() for row in rows]
    return report | {"adam_g_updates_per_s": ADAM_G_UPDATES_PER_S}


def _measure_networked(settings: PsSettings, progress: Callable[[str], None]) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows of all modes that need servers, and PyTorch's version if it was measured."""
    results: list[dict[str, Any]] = []
    torch_version = ""
    for servers in settings.servers if settings.networked else ():
        for threads in settings.apply_threads:
            for clients in settings.clients:
                with _Bench(settings, servers, threads, clients, progress) as bench:
                    results += bench.measure()
                    torch_version = torch_version or bench.torch_version
    return _with_speed_up(results), torch_version


class _Bench:
    """One cluster with its clients, limits and peer, and the best rate of each."""

    def __init__(
        self, settings: PsSettings, servers: int, threads: int, clients: int, progress: Callable[[str], None]
    ) -> None:
        self._settings, self._progress = settings, progress
        self._servers, self._threads, self._count = servers, threads, clients
        self._modes = settings.networked
        self._best: dict[str, tuple[float, Done]] = {}
        self._server_cpu_s: dict[str, tuple[float, float]] = {}
        self._pushes = {WEIGHTS: 0, FACTORS: 0}
        self._plain = self._plain_ours = self._product = self._memory = 0.0
        self._stack = ExitStack()
        self._torch: TorchRpc | None = None

    @property
    def torch_version(self) -> str:
        return self._torch.version if self._torch is not None else ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    def _start(self, stack: ExitStack) -> None:
        settings = self._settings
        if settings.peer_python is not None and self._servers == self._count == 1:
            self._scan_torch(settings.peer_python)
        shape = f"{self._servers} server(s) of {self._threads} apply thread(s), {self._count} client(s)"
        self._progress(f"starting {shape}")
        self._cluster = stack.enter_context(PsCluster(self._servers, self._threads, settings.link_bytes_per_s))
        jobs = []
        if any(mode != "factors" for mode in self._modes):
            jobs.append(WEIGHTS)
            self._cluster.create_job(WEIGHTS, weights_record(settings.model_bytes, settings.block_bytes, self._servers))
        if "factors" in self._modes:
            jobs.append(FACTORS)
            self._cluster.create_job(FACTORS, factors_record(settings.factors, self._servers))
        address, transport = self._cluster.controller, settings.transport
        self._clients = [
            stack.enter_context(ClientProcess(address, transport, number, tuple(jobs), wire=settings.wire))
            for number in range(self._count)
        ]
        for client in self._clients:
            client.ready()
        scheme = "tcp" if transport == "tcp" else "unix"
        self._sockets = PlainSockets(scheme, str(self._cluster.folder))
        stack.callback(self._sockets.close)
        self._our_sockets = PlainSockets(scheme, str(self._cluster.folder), our_options=True)
        stack.callback(self._our_sockets.close)

    def _scan_torch(self, python: str) -> None:
        settings = self._settings
        blocks = max(round(settings.model_bytes / settings.block_bytes), 1)
        threads = self._threads
        self._torch = TorchRpc(python, settings.transport, blocks, settings.block_bytes, settings.factors, threads)
        modes = [mode for mode in TORCH_MODES if mode in self._modes]
        self._torch.scan(modes, min(settings.seconds, 1.0), self._progress)

    def measure(self) -> list[dict[str, Any]]:
        """Runs all rounds and returns a row per mode."""
        settings = self._settings
        products, memory = product_limit(self._threads), memory_limit(self._threads)
        for mode in self._modes:  # a warm-up that checks every pulled element
            self._ours(mode, min(settings.seconds, 0.3), every_element=True)
        self._best.clear()
        for number in range(settings.rounds):
            self._progress(f"round {number + 1} of {settings.rounds}")
            if "factors" in self._modes:
                self._product = max(self._product, products.measure(min(settings.seconds, LIMIT_S)))
            if settings.transport in ("auto", "shared"):
                self._memory = max(self._memory, memory.measure(min(settings.seconds, LIMIT_S)))
            for mode in self._modes:
                self._ours(mode, settings.seconds)
            if any(mode != "factors" and _used(done) != "shared" for mode, (_, done) in self._best.items()):
                self._plain = max(self._plain, self._sockets.gb_per_s(settings.plain_blocks))
                self._plain_ours = max(self._plain_ours, self._our_sockets.gb_per_s(settings.plain_blocks))
            if self._torch is not None:
                self._torch.round([mode for mode in TORCH_MODES if mode in self._modes], settings.seconds)
        self._check()
        return [self._row(mode) for mode in self._modes]

    def _ours(self, mode: str, seconds: float, *, every_element: bool = False) -> None:
        servers = self._cluster.processes()
        before = [process.cpu_times() for process in servers]
        order = Order(mode, seconds, every_element)
        done = _sum(all_do(self._clients, order))
        after = [process.cpu_times() for process in servers]
        self._pushes[FACTORS if mode == "factors" else WEIGHTS] += done.pushes
        rate = (done.updates if mode == "factors" else done.push_bytes + done.pull_bytes) / done.seconds
        if mode not in self._best or rate > self._best[mode][0]:
            self._best[mode] = (rate, done)
            self._server_cpu_s[mode] = (
                sum(b.user - a.user for a, b in zip(before, after, strict=True)),
                sum(b.system - a.system for a, b in zip(before, after, strict=True)),
            )

    def _check(self) -> None:
        """Compares every parameter with the sum of the pushes."""
        if any(mode != "factors" for mode in self._modes):
            all_do(self._clients[:1], Order("check weights", pushes=self._pushes[WEIGHTS]))
        if "factors" in self._modes:
            all_do(self._clients[:1], Order("check factors", pushes=self._pushes[FACTORS]))

    def _row(self, mode: str) -> dict[str, Any]:
        settings, (rate, done) = self._settings, self._best[mode]
        used = _used(done)
        row: dict[str, Any] = {
            "mode": mode,
            "transport": used if settings.transport != "auto" else f"auto: {used}",
            "apply_threads": self._threads,
            "clients": self._count,
            "servers": self._servers,
            "dtype": settings.wire,
            "link_mbit_per_s": None
            if settings.link_bytes_per_s is None
            else round(settings.link_bytes_per_s / 125e3, 2),
        }
        if mode == "factors":
            limit = self._product / 2
            row |= {"g_updates_per_s": rate / 1e9, "limit_g_updates_per_s": limit / 1e9}
            row |= {"limit": "half the rate of float32 products, same threads"}
        else:
            row |= {"model_bytes": settings.model_bytes, "block_bytes": settings.block_bytes}
            row |= {"gb_per_s": rate / 1e9, "g_updates_per_s": done.updates / done.seconds / 1e9 or None}
            if used == "shared":
                limit = self._memory / COPIES[mode]
                row |= {"limit": f"memory bandwidth over {COPIES[mode]:g} bytes moved for each"}
            else:
                widened = 1e9 * ELEMENT_BYTES / WIRE_ELEMENT_BYTES[settings.wire]  # rates are of float32
                limit = self._plain * widened
                if settings.link_bytes_per_s is not None and mode != "both":  # which uses both directions
                    limit = min(limit, settings.link_bytes_per_s * TCP_SHARE * widened / 1e9)
                link = "" if settings.link_bytes_per_s is None else ", or the link"
                kind = "tcp" if settings.transport == "tcp" else "unix"
                row |= {"limit": f"plain blocking sockets, {kind}{link}"}
                row |= {"our_options_gb_per_s": self._plain_ours * widened / 1e9}
                row |= {"fraction_of_our_options": rate / (self._plain_ours * widened)}
            row |= {"limit_gb_per_s": limit / 1e9}
        row |= {"fraction_of_limit": rate / limit}
        moved = (done.push_bytes + done.pull_bytes) / 1e9
        row |= {
            "client_cpu_s_per_gb": [seconds / moved for seconds in done.cpu_s],
            "server_cpu_s_per_gb": [seconds / moved for seconds in self._server_cpu_s[mode]],
            "rounds": settings.rounds,
        }
        return row | self._against_torch(mode, rate)

    def _against_torch(self, mode: str, rate: float) -> dict[str, Any]:
        if self._torch is None or mode not in self._torch.best:
            return {}
        peer = self._torch.best[mode]
        setting = {"torch_rpc_transport": peer.transport, "torch_rpc_window": peer.window}
        if mode == "factors":
            shown: dict[str, Any] = {"torch_rpc_g_updates_per_s": peer.updates_per_s / 1e9}
            return shown | setting | {"ratio_vs_torch_rpc": rate / peer.updates_per_s}
        shown = {"torch_rpc_gb_per_s": peer.bytes_per_s / 1e9}
        return shown | setting | {"ratio_vs_torch_rpc": rate / peer.bytes_per_s}


def _used(done: Done) -> str:
    """Returns the kinds of connections used."""
    return ", ".join(sorted(done.transports))


def _sum(all_done: Sequence[Done]) -> Done:
    """Returns the sum of all client processes' results, over the time of the slowest."""
    total = Done(seconds=max(done.seconds for done in all_done))
    for done in all_done:
        total.pushes += done.pushes
        total.pulls += done.pulls
        total.push_bytes += done.push_bytes
        total.pull_bytes += done.pull_bytes
        total.updates += done.updates
        total.push_latencies_s += done.push_latencies_s
        total.pushes_by_client += done.pushes_by_client
        total.transports |= done.transports
        total.cpu_s = (total.cpu_s[0] + done.cpu_s[0], total.cpu_s[1] + done.cpu_s[1])
    return total


# --- without a network ------------------------------------------------------------------------------------------------


def _measure_local(settings: PsSettings, threads: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    progress(f"no network: {threads} apply thread(s)")
    server = LocalServer(weights_record(settings.model_bytes, settings.block_bytes, 1), settings.factors, threads)
    best = {case: LocalRate(0.0, 0.0) for case in CASES}
    products, memory = product_limit(threads), memory_limit(threads)
    product_rate = memory_rate = 0.0
    try:
        for _ in range(settings.rounds):
            product_rate = max(product_rate, products.measure(min(settings.seconds, LIMIT_S)))
            memory_rate = max(memory_rate, memory.measure(min(settings.seconds, LIMIT_S)))
            for case in CASES:
                rate = server.measure(case, settings.seconds)
                best[case] = max(best[case], rate, key=lambda rate: rate.updates_per_s)
    finally:
        server.close()
    rows = []
    for case, rate in best.items():
        row: dict[str, Any] = {"mode": case.name, "apply_threads": threads, "g_updates_per_s": rate.updates_per_s / 1e9}
        if case.deltas:
            row |= {"model_bytes": settings.model_bytes, "block_bytes": settings.block_bytes, "dtype": "float32"}
            row |= {"gb_per_s": rate.bytes_per_s / 1e9, "limit_gb_per_s": memory_rate / 1e9}
            row |= {
                "limit": "memory bandwidth, (deltas + 2) x the model",
                "fraction_of_limit": rate.bytes_per_s / memory_rate,
            }
        else:
            row |= {"limit_g_updates_per_s": product_rate / 2e9, "limit": "half the rate of float32 products"}
            row |= {"fraction_of_limit": rate.updates_per_s / (product_rate / 2)}
        rows.append(row | {"rounds": settings.rounds})
    return rows


def _with_speed_up(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with the speed-up of more apply threads over the fewest, all else equal."""
    first: dict[tuple[Any, ...], float] = {}
    for row in sorted(results, key=lambda row: row["apply_threads"]):
        key = (row["mode"], row.get("clients"), row.get("servers"))
        rate = row.get("gb_per_s") or row["g_updates_per_s"]
        row["speed_up_by_threads"] = rate / first.setdefault(key, rate)
    return results
