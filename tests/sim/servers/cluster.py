"""Everything of one seed: controllers, servers, clients, their clocks, and the job that they work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any

from adamctl.config.records import (
    Acks,
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    decode,
    drain_key,
    encode,
    job_key,
    layout_key,
)
from adamctl.model.layout import Distribution, ParameterLayout, Tensor
from adamctl.model.placement import place_copies
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.instructions import Answer, Instruction, Probe, Refuse
from adamctl.roles.controller.core.paxos.paxos_core import PaxosConfig
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.events import CompareAndSet, Disconnected, Gone, Read
from adamctl.wire.messages import ConfigChanges, ConfigReadReply
from tests.sim.controllers.clients import Caller
from tests.sim.controllers.controller import SimController
from tests.sim.controllers.nodes import DRIFTS, Leases
from tests.sim.engine import Clock, ViolationError, World
from tests.sim.processes.process import SimProcess
from tests.sim.servers.clients.push_client import SimPushClient
from tests.sim.servers.clients.real_worker import RealWorker, has_real_clients, real_clients
from tests.sim.servers.clients.worker import SimWorker
from tests.sim.servers.invariants import COPIES_MIN, ServerInvariants
from tests.sim.servers.job_kinds import JobKinds
from tests.sim.servers.ledger import Done, Ledger
from tests.sim.servers.shells.checkpoint import COORDINATOR
from tests.sim.servers.shells.server import FLUSH, SimServer

JOB = "j"
LOST_AFTER_S = 1.25
MARGIN_S = 0.001
"""G is so much longer than leases and drift ask for."""
GRACE_S = 2.0
SERVERS_EXPECTED = 1
LOSS_FACTOR, LOSS_MARGIN_S = 1.1, 1.0
"""What a loss of all copies may take back, by true time: by wrong clocks, with what other members write meanwhile."""
KINDS = (
    *("crash", "crash", "crash", "crash-two", "crash-all", "lag", "lag", "pause", "pause", "pause"),
    *("cut", "one-way", "one-way", "alone", "alone", "heal", "heal", "heal", "weather", "jump", "full"),
    *("drain", "drain", "fourth", "controller"),
)
STORE_KINDS = ("crash-all", "crash-all", "crash-all", "crash-two", "crash", "crash", "full", "full", "weather", "drain")
"""Where stores matter: all memory is lost again and again, and disks are full."""
MOVE_KINDS = ("drain", "drain", "drain", "drain", "crash", "pause", "weather", "heal", "full", "controller")
"""Where moves matter: the only copy of a bucket moves again and again, and who has just got it dies."""


@dataclass
class ServerFault:
    """A planted fault to be found.

    Attributes:
        changes: (owner, name, what takes its place) while the seed runs.
        cluster: changes a cluster before it begins.
    """

    name: str
    about: str
    changes: Sequence[tuple[Any, str, Any]] = ()
    cluster: Callable[[ServerCluster], None] | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Puts other functions in the place of some, and puts those back."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in self.changes]
        try:
            for owner, name, instead in self.changes:
                setattr(owner, name, instead)
            yield
        finally:
            for owner, name, original in before:
                setattr(owner, name, original)


def make_layout(distribution: Distribution = "zeros") -> ParameterLayout:
    """Four buckets: one large shard, which makes buckets large enough for two shards each of the three other layers."""
    tensors: list[Tensor] = []
    offset = 0
    for layer, shapes in enumerate((((1, 120),), ((2, 2), (2,)), ((2, 2), (2,)), ((2, 2), (2,)))):
        for shape in shapes:
            tensors.append(Tensor(f"t{len(tensors)}", layer, shape, offset, distribution, 0.0))
            offset += 128
    return LayoutRecord(tuple(tensors), SERVERS_EXPECTED).layout()


class QuietWorld(World):
    """Leaves out of the trace what controllers say to each other."""

    def note(self, who: str, what: str, *details: object) -> None:
        if self.keep_trace and what != "receives":
            super().note(who, what, *details)


class WildClock(Clock):
    """A clock that is wrong by any factor, until somebody sets it right."""

    def calm(self) -> None:
        """It goes on at the right pace from what it shows now."""
        self._base_s, self._rate = self.now() - self._world.now_s, 1.0


class ProbingController(SimController):
    """Looks at once whether a process has ended, when the leader asks for that."""

    ended: Callable[[str, int], bool]

    def _send_all(self, instructions: list[Instruction]) -> None:
        super()._send_all(instructions)
        for instruction in instructions:
            if isinstance(instruction, Probe):
                node, incarnation = instruction.record.node, instruction.record.incarnation
                self.world.after(0.002 + 0.05 * self.world.random.random(), partial(self._probe, node, incarnation))

    def _probe(self, node: str, incarnation: int) -> None:
        if (self.name, node) not in self.world.cut and self.ended(node, incarnation):
            self.take(Gone(node, incarnation))


class ServerCluster:
    """See the module.

    Attributes:
        lease_s: D; as long as G and the drift of the clocks just allow.
        wild: clocks are arbitrarily wrong, so that only epochs protect (I2).
        stores_matter: all memory is lost again and again.
        moves_matter: there is one copy of each bucket; it moves again and again, and who has just got it dies.
        saves: checkpoints are written all the time.
        kinds: of misfortunes, by how often they happen.
        host_of: server -> the machine that it stands for, its failure domain; empty: all are on one.
        made: whether the job's keys are there.
        real_clients: whether its clients are real ones, over a network of the simulator's.
        special: what is special about the job.
        calm: faults have ended.
    """

    calm = False

    def __init__(
        self, seed: int, members: int, *, planted: ServerFault | None, keep_trace: bool, special: bool = True
    ) -> None:
        """`special`: some seeds have jobs of other kinds."""
        self.world = QuietWorld(seed, keep_trace=keep_trace)
        random = self.world.random
        self.special = JobKinds(seed, special)
        self.layout = make_layout(self.special.distribution)
        self.acks: Acks = random.choice(("replicated",) * 5 + ("durable",) * 2 + ("applied",))
        self.replication = random.choice((3, 3, 3, 3, 2, 2, 1))
        self.min_in_sync = random.choice((self.replication - 1, self.replication - 1, 1, 2))
        of_stores = Random(f"{seed} stores")
        self.stores_matter = of_stores.random() < 0.3
        if self.stores_matter:
            self.acks = of_stores.choice(("durable", "durable", "durable", "replicated"))
        if self.replication == 1:
            self.acks, self.min_in_sync = random.choice(("applied", "durable")), 1
        of_moves = Random(f"{seed} moves")
        self.moves_matter = not self.stores_matter and of_moves.random() < 0.06
        if self.moves_matter:
            self.replication = self.min_in_sync = 1
            self.acks = of_moves.choice(("applied", "applied", "durable"))
        self.saves = Random(f"{seed} saves").random() < 0.06
        self.rule = random.choice(("add", "add", "adagrad"))
        self.wild = random.random() < 0.15
        self.wild_clocks: list[WildClock] = []
        self.drift = random.choice(DRIFTS)
        self.lease_s = (LOST_AFTER_S - MARGIN_S) * (1 - self.drift) / (1 + self.drift)
        config = self._watch()
        self.hosts: dict[str, SimController] = {}
        peers = {name: name for name in "abc"[: members or random.choice((1, 1, 1, 1, 3))]}
        for name in peers:
            host = ProbingController(self.world, name, peers, config, self.invariants, self._clock())
            host.ended = self._ended
            host.compact_entries = 200
            self.hosts[name] = host
        for each in self.hosts.values():
            each.hosts = self.hosts
        self.planted = planted
        self.servers: dict[str, SimServer] = {}
        self.host_of: dict[str, str] = {}
        for number in range(1, 4):
            self._add_server(f"p{number}")
        of_hosts = Random(f"{seed} hosts")
        if of_hosts.random() < 0.15:
            self.put_on_hosts({f"p{number}": of_hosts.choice("xxyz") for number in range(1, 5)})
        self.real_clients = has_real_clients(seed) and not self.special.any
        self.clients = [self._worker("w1"), self._worker("w2")]
        for client in self.clients:
            client.pause_s_max = random.choice((0.1, 0.3, 0.6))
        self.kinds = tuple(random.sample(KINDS, random.randint(3, len(KINDS))))
        if self.stores_matter:
            self.kinds = tuple(of_stores.sample(STORE_KINDS, of_stores.randint(4, len(STORE_KINDS))))
            for client in self.clients:
                client.pause_s_max = of_stores.choice((0.02, 0.1, 0.3))
        if self.moves_matter:
            self.kinds = tuple(of_moves.sample(MOVE_KINDS, of_moves.randint(6, len(MOVE_KINDS))))
        self.made = False
        self._session = 0
        self._caller = Caller(self.world, "coordinator", self.hosts)
        if planted is not None and planted.cluster is not None:
            planted.cluster(self)
        self.special.prepare(self)

    def _watch(self) -> ControllerConfig:
        """Makes the ledger and what must hold, as the cluster was drawn; returns the controllers' times."""
        self.ledger = Ledger(self.world, self.acks)
        self.ledger.stale_reads = self.wild
        self.ledger.squares = self.rule == "adagrad"
        self.ledger.single = self.replication == 1
        if not self.wild:
            self.ledger.window_s = FLUSH.window_s * LOSS_FACTOR + LOSS_MARGIN_S
        self.leases = Leases(self.world)
        self.leases.checked = not self.wild
        paxos = PaxosConfig(0.15, 0.4, 2.0, log_bytes_max=4000, part_bytes=2000)
        config = ControllerConfig(beacon_interval_s=self.lease_s / 4, lost_after_s=LOST_AFTER_S, paxos=paxos)
        self.invariants = ServerInvariants(self.world, config, self.leases, self.ledger, self.layout, JOB)
        self.invariants.leases_hold = not self.wild
        self.invariants.copies_min = min(COPIES_MIN, self.replication)
        self.invariants.min_in_sync = self.min_in_sync if self.replication > 1 else 1
        return config

    def put_on_hosts(self, host_of: dict[str, str]) -> None:
        """Puts servers on machines; called before anything has begun."""
        self.host_of = self.invariants.host_of = host_of
        for name, server in self.servers.items():
            server.failure_domain = host_of[name]

    def become(self, kind: str) -> None:
        """Has a job of this kind alone, for a planted fault; called before anything has begun."""
        self.special.become(kind)
        self.layout = self.invariants.layout = make_layout(self.special.distribution)
        self.real_clients = False
        self.clients = [self._worker(client.name) for client in self.clients]

    def _worker(self, name: str) -> SimWorker:
        kind = RealWorker if self.real_clients else SimWorker
        worker = kind(self.world, name, self.layout, JOB, self.servers, self.hosts, self.ledger, self.lease_s)
        worker.lost_for_good = self.invariants.given_up
        return worker

    def add_visitor(self, name: str) -> SimWorker:
        """Returns a further worker, which is not started yet."""
        return self._worker(name)

    def add_client(self, name: str) -> SimPushClient:
        """Returns a further client, which reads who holds what and does nothing else."""
        view = SimProcess(self.world, name, Clock(self.world, 1.0)).begin()
        caller, key, connections = Caller(self.world, name, self.hosts), (name, 1 << 30), count(1 << 40)
        client = SimPushClient(view, key, caller, self.layout, JOB, self.servers, self.ledger, connections)
        client.reread()
        return client

    def _clock(self) -> Clock:
        """A clock as wrong as is allowed, or nearly; in wild seeds, any."""
        random = self.world.random
        if self.wild:
            clock = WildClock(self.world, random.choice((0.3, 0.7, 1.0, 1.5, 3.0)))
            self.wild_clocks.append(clock)
            return clock
        return Clock(
            self.world, 1.0 + random.choice((-1, -1, 1, 1, 0)) * self.drift * random.choice((1.0, random.random()))
        )

    def _add_server(self, name: str) -> SimServer:
        server = SimServer(self.world, name, self._clock(), self.hosts, self.lease_s, self.invariants, JOB)
        server.failure_domain = self.host_of.get(name, "")
        self.servers[name] = server
        server.peers = self.servers
        self.invariants.servers = self.servers
        return server

    # --- life -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everything starts, and the job is made when three servers are there."""
        world = self.world
        for host in self.hosts.values():
            world.after(world.random.random() * 0.1, host.start)
        for server in self.servers.values():
            world.after(0.2 + world.random.random() * 0.2, server.start)
        world.after(0.7, self._look)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything happens in here; what is still under way in a process afterwards is ended."""
        with real_clients(self.world):
            try:
                yield
            finally:
                for client in self.clients:
                    client.bury()
                for server in self.servers.values():
                    if server.run:
                        server.end()
                        server.loop.bury()

    def add_fourth(self) -> SimServer:
        server = self._add_server("p4")
        server.start()
        return server

    def _look(self) -> None:
        """Waits for the servers, as a coordinator does."""

        def found(answer: Answer | Refuse | None) -> None:
            entries = (answer.entries or ()) if isinstance(answer, Answer) else ()
            assert answer is None or isinstance(answer, Refuse) or isinstance(answer.message, ConfigReadReply)
            if len([entry for entry in entries if decode(entry.value, NodeRecord).role == "ps"]) < len(self.servers):
                self.world.after(0.2, self._look)
            else:
                self._make_job()

        self._caller.call(lambda token: Read(token, "/nodes/"), found, 3.0)

    def _make_job(self) -> None:
        rule = RuleConfig(self.rule)
        copies, restore = (self.acks, self.replication, self.min_in_sync), self.special.folder
        record = JobRecord("running", self.layout.hash, rule, 0, COORDINATOR.node, restore, *copies)
        puts = {job_key(JOB): encode(record)}
        puts[layout_key(JOB)] = encode(LayoutRecord(self.layout.tensors, SERVERS_EXPECTED))
        host_of = self.host_of or dict.fromkeys(self.servers, "h")
        for bucket, nodes in place_copies(self.layout, JOB, sorted(self.servers), self.replication, host_of).items():
            puts[bucket_key(JOB, bucket)] = encode(BucketRecord(1, nodes[0], nodes))
        self._change(ConfigChanges(dict.fromkeys(puts, 0), puts), self._job_made)

    def _job_made(self) -> None:
        self.made = True
        for client in self.clients:
            client.start()
        self.special.made()

    def drain(self, node: str, begins: bool) -> None:
        """An operator wants a server to hold nothing, or takes it back."""
        self.world.note("operator", "drain" if begins else "undrain", node)
        key, incarnation = drain_key(node), self.invariants.incarnation(node)
        puts = {key: encode(DrainRecord(incarnation, 0.0))} if begins else {}
        self._change(ConfigChanges({}, puts, () if begins else (key,)), lambda: None)

    def _change(self, changes: ConfigChanges, done: Callable[[], None]) -> None:
        self._session += 1
        session = f"coordinator+{self._session}"

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer):
                done()
            else:
                self.world.after(0.2, again)

        def again() -> None:
            self._caller.call(lambda token: CompareAndSet(token, session, 1, changes, 0), answered, 5.0)

        again()

    def _ended(self, node: str, incarnation: int) -> bool:
        workers = {worker.name: worker for worker in self.clients} | self.special.visitors
        process = self.servers.get(node) or workers.get(node)
        return process is not None and (not process.alive or process.incarnation not in (incarnation, 0))

    def report_gone(self, server: SimServer, incarnation: int) -> None:
        """A supervisor tells the controllers that a process has ended, if it has."""
        if incarnation and (not server.alive or server.incarnation != incarnation):
            for host in self.hosts.values():
                host.take(Disconnected(server.last_connection))
                host.take(Gone(server.name, incarnation))

    # --- afterwards -------------------------------------------------------------------------------------------------

    def check_contents(self) -> None:
        """Every copy has every push once (I5), and all copies are the same (I6)."""
        for index, record in self.invariants.records.items():
            for shard in self.invariants.shards_of(index):
                done: dict[str, Done] = {}
                for node in record.in_sync:
                    found = self.servers[node].content_of(shard)
                    if found is None:
                        raise ViolationError(f"{node} is to hold shard {shard} and does not")
                    self.ledger.final(node, shard, *found)
                    done[node] = found[1]
                if len(set(done.values())) > 1:  # of living clients all is in all; of dead ones the same everywhere
                    raise ViolationError(f"copies differ in the end: shard {shard}, {done}")
