"""One seed of a whole cluster: a phase in which all goes wrong, and one in which it must go well."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from tests.sim.engine import NetworkFaults, ViolationError
from tests.sim.servers.clients.worker import SimWorker
from tests.sim.servers.cluster import GRACE_S, JOB, LOST_AFTER_S, ServerCluster, ServerFault
from tests.sim.servers.shells.checkpoint import SimCheckpoints
from tests.sim.servers.shells.server import SimServer

FAULTS_S_MIN = 5.0
FAULTS_S_MAX = 60.0
FAULTS_EVENTS_MIN = 2_000
EVENTS_MIN = 5_000
COPIES_S = 6.0
HANDED_OVER_S = 0.5
CLIENT_TROUBLES = (0, 0, 1, 1, 1, 2)
"""How often a client dies or is stopped."""
FROM_STORES_S = 3.0
"""More until buckets are served of which no copy was left in memory: all their members have to be back."""
"""After faults have ended, until every bucket has all its copies and every push is answered."""


@dataclass
class Result:
    seed: int
    events: int
    acknowledged: int
    pulled: int
    takeovers: int
    changes: int
    total_losses: int


class ServerScenario:
    """Everything of one seed."""

    cluster_type = ServerCluster

    def __init__(
        self, seed: int, members: int = 0, *, planted: ServerFault | None = None, keep_trace: bool = False
    ) -> None:
        """`members`: controllers; 0: the seed decides."""
        self.cluster = self.cluster_type(seed, members, planted=planted, keep_trace=keep_trace)
        self.world = self.cluster.world
        self.calm = False
        self._drained = ""
        if self.cluster.stores_matter:
            self.cluster.invariants.on_joined = self._end_newcomers
        self.checkpoints = SimCheckpoints(self.cluster, JOB)
        if self.cluster.moves_matter:
            self.cluster.invariants.on_moved = self._end_owner

    def run(self) -> Result:
        """Runs both phases.

        Raises:
            ViolationError: something that must hold did not.
        """
        planted, special = self.cluster.planted, self.cluster.special
        with (
            self.checkpoints.planted(),
            self.cluster.running(),
            special.planted(),
            planted.planted() if planted is not None else nullcontext(),
        ):
            return self._run()

    def _run(self) -> Result:
        world, cluster = self.world, self.cluster
        cluster.begin()
        for server in cluster.servers.values():
            server.on_crash = self._server_crashed
        for host in cluster.hosts.values():
            host.on_crash = lambda host: world.after(self._downtime_s(), host.start)
        world.run_until(2.0)
        while not cluster.made and world.now_s < 20.0:
            world.run_until(world.now_s + 0.5)
            if world.now_s >= 8.0:  # controllers whose clocks are arbitrarily wrong may elect nobody
                for clock in cluster.wild_clocks:
                    clock.calm()
        if not cluster.made:
            raise ViolationError("the job was not made")
        began_s = world.now_s
        for client in cluster.clients:
            client.down_s = self._client_downtime_s
            for _ in range(world.random.choice(CLIENT_TROUBLES)):
                world.after(world.random.random() * FAULTS_S_MIN, partial(self._trouble_client, client))
        self._set_weather()
        if cluster.saves:
            self.checkpoints.begin()
        world.after(world.random.random(), self._misfortune)
        world.run_until(began_s + FAULTS_S_MIN)
        while world.events < FAULTS_EVENTS_MIN and world.now_s < began_s + FAULTS_S_MAX:
            world.run_until(world.now_s + 1.0)
        self._end_faults()
        self._demand_liveness()
        while world.events < EVENTS_MIN:
            world.run_until(world.now_s + 1.0)
        invariants = cluster.invariants
        return Result(
            world.seed,
            world.events,
            sum(client.acknowledged for client in cluster.clients),
            sum(client.pulled for client in cluster.clients),
            invariants.takeovers,
            invariants.changes,
            invariants.total_losses,
        )

    # --- faults -----------------------------------------------------------------------------------------------------

    def _set_weather(self) -> None:
        random = self.world.random
        self.world.network = NetworkFaults(
            delay_s_max=random.choice((0.002, 0.01, 0.05)),
            loss=random.choice((0.0, 0.0, 0.02, 0.2)),
            duplication=random.choice((0.0, 0.1, 0.5)),
            reordering=random.choice((0.0, 0.1, 0.4)),
            late_s_max=random.choice((0.05, 0.5, 3.0)),
        )
        for host in self.cluster.hosts.values():
            host.disk_s_max = random.choice((0.001, 0.005, 0.05))
        for server in self.cluster.servers.values():
            server.disk_s_max = random.choice((0.002, 0.02, 0.3))
            server.apply_s_max = random.choice((0.0005, 0.005, 0.1))

    def _misfortune(self) -> None:
        """Something happens; and again later."""
        if self.calm:
            return
        world, random, cluster = self.world, self.world.random, self.cluster
        server = random.choice(list(cluster.servers.values()))
        kind = random.choice(cluster.kinds)
        match kind:
            case "crash" if server.alive:
                server.crash()
            case "crash-two":
                for one in random.sample(list(cluster.servers.values()), 2):
                    one.crash()
            case "lag":
                self._leave_the_last()
            case "crash-all" if random.random() < 0.5:
                for one in cluster.servers.values():
                    one.crash()
            case "pause":
                self._pause(server)
            case "cut" | "one-way":
                self._cut(server, both=kind == "cut")
            case "alone":
                self._isolate(server)
            case "heal":
                world.note("network", "healed")
                world.cut.clear()
            case "weather":
                self._set_weather()
            case "jump" if cluster.wild:
                server.clock.jump(random.random() * random.choice((0.5, 3.0, 30.0)))
            case "full":
                server.disk_full = not server.disk_full
                world.note(server.name, "disk", "full" if server.disk_full else "has room")
            case "drain":
                self._drain(server.name)
            case "fourth":
                self._add_fourth()
            case "controller":
                self._trouble_controller()
        world.after(random.choice((0.1, 0.5, 2.0)) * random.random(), self._misfortune)

    def _pause(self, server: SimServer) -> None:
        """As SIGSTOP does, for 0 to 3 leases, often about as long as one."""
        random, cluster = self.world.random, self.cluster
        lease_s = server.clock.true_length_s(cluster.lease_s)
        length_s = random.choice(
            (random.random() * 3 * lease_s, lease_s + random.choice((-0.001, 0.0, 0.001)), random.random() * 0.2)
        )
        self.world.note(server.name, "paused", f"for {length_s:.3f} s")
        server.pause()
        self.world.after(length_s, server.resume)

    def _cut(self, server: SimServer, *, both: bool) -> None:
        """Cuts a server off from some of the others, or from everybody."""
        random, cluster = self.world.random, self.cluster
        everybody = [*cluster.hosts, *cluster.servers, *(client.name for client in cluster.clients)]
        groups = (list(cluster.hosts), list(cluster.servers), everybody, random.sample(everybody, 3))
        others = [name for name in random.choice(groups) if name != server.name]
        outward = random.random() < 0.5
        self.world.note("network", "cut", server.name, "from", others, "both ways" if both else "one way")
        for other in others:
            if both or outward:
                self.world.cut.add((server.name, other))
            if both or not outward:
                self.world.cut.add((other, server.name))

    def _leave_the_last(self) -> None:
        """A copy does not hear from its primary for a moment; then it is the only one that is left of its bucket."""
        world, random, cluster = self.world, self.world.random, self.cluster
        record = random.choice(list(cluster.invariants.records.values()))
        others = [node for node in record.in_sync if node != record.primary]
        if not others:
            return
        last = random.choice(others)
        world.note("network", "cut", record.primary, "from", last, "one way, and then all but", last, "die")
        world.cut.add((record.primary, last))

        def die() -> None:
            world.cut.discard((record.primary, last))
            for node in record.in_sync:
                if node != last:
                    cluster.servers[node].crash()

        world.after(0.05 + random.random() * cluster.lease_s / 2, die)

    def _end_newcomers(self, index: int) -> None:
        """Soon after a server has become a member, all that hold the bucket die."""
        world, cluster = self.world, self.cluster
        if self.calm or world.random.random() < 0.7:
            return

        def die() -> None:
            if not self.calm:
                world.note("world", "ENDS", "all that hold bucket", index)
                for node in cluster.invariants.records[index].in_sync:
                    cluster.servers[node].crash()

        world.after(0.05 + 0.4 * world.random.random(), die)

    def _end_owner(self, index: int) -> None:
        """Soon after the only copy of a bucket has moved, who has it dies."""
        world, cluster = self.world, self.cluster
        if self.calm or world.random.random() < 0.5:
            return

        def die() -> None:
            if not self.calm:
                world.note("world", "ENDS", "who has got bucket", index)
                cluster.servers[cluster.invariants.records[index].primary].crash()

        world.after(world.random.random() * world.random.choice((0.05, 0.5)), die)

    def _isolate(self, server: SimServer) -> None:
        """A server and a client can talk to each other and to nobody else: a primary that does not know it."""
        cluster = self.cluster
        friend = self.world.random.choice(cluster.clients).name
        everybody = [*cluster.hosts, *cluster.servers, *(client.name for client in cluster.clients)]
        self.world.note("network", "cut", server.name, "and", friend, "from everybody else")
        for name in (server.name, friend):
            for other in everybody:
                if other not in (server.name, friend):
                    self.world.cut |= {(name, other), (other, name)}

    def _drain(self, name: str) -> None:
        """One server at a time, and only where there are enough others."""
        cluster = self.cluster
        if self._drained:
            cluster.drain(self._drained, False)
            self._drained = ""
        elif len(cluster.servers) > cluster.replication:
            self._drained = name
            cluster.drain(name, True)

    def _add_fourth(self) -> None:
        if "p4" not in self.cluster.servers:
            self.cluster.add_fourth().on_crash = self._server_crashed

    def _trouble_controller(self) -> None:
        random = self.world.random
        host = random.choice(list(self.cluster.hosts.values()))
        if random.random() < 0.5:
            host.crash()
        else:
            host.pause()
            self.world.after(random.random() * random.choice((0.3, 1.0)), host.resume)

    def _trouble_client(self, client: SimWorker) -> None:
        """It dies with what is under way and is back under a new incarnation, or begins anew; or stops for a while."""
        random = self.world.random
        kind = random.random()
        if self.calm:
            return
        if kind < 0.5:
            client.crash()
        elif kind < 0.8:
            client.restart()
        else:
            self.world.note(client.name, "paused")
            client.pause()
            self.world.after(random.random() * random.choice((0.5, 3.0)), client.resume)

    def _client_downtime_s(self) -> float:
        random = self.world.random
        return 0.1 if self.calm else random.choice((random.random() * 0.1, random.random() * 1.5))

    def _downtime_s(self) -> float:
        random = self.world.random
        if self.calm:
            return 0.1
        return random.choice((random.random() * 0.1, random.random() * 0.1, random.random() * 1.5, 3.0))

    def _server_crashed(self, server: SimServer) -> None:
        """Restarts, often faster than its lease ends; a supervisor may tell the controllers that it has ended."""
        down_s = self._downtime_s()
        incarnation = server.incarnation
        self.world.after(down_s, server.start)
        if self.world.chance(0.5):
            self.world.after(
                0.02 + 0.3 * self.world.random.random(), lambda: self.cluster.report_gone(server, incarnation)
            )

    def _end_faults(self) -> None:
        self.world.note("world", "CALM", "from here on everything works")
        self.calm = self.cluster.calm = True
        self.cluster.special.stop()
        self.world.network = NetworkFaults()
        self.world.cut.clear()
        for clock in self.cluster.wild_clocks:
            clock.calm()
        for host in self.cluster.hosts.values():
            host.disk_s_max = 0.002
            host.resume()
            host.start()
        for server in self.cluster.servers.values():
            server.disk_s_max, server.apply_s_max = 0.002, 0.001
            server.disk_full = False
            server.resume()
            server.start()
        for client in self.cluster.clients:
            client.resume()

    # --- afterwards -------------------------------------------------------------------------------------------------

    def _wait_until_served(self) -> None:
        """Every bucket is served, or is just being handed over."""
        left = set(self.cluster.invariants.records)
        until_s = self.world.now_s + HANDED_OVER_S
        while left := {index for index in left if self.cluster.invariants.not_served(index)}:
            if self.world.now_s >= until_s:
                index = min(left)
                raise ViolationError(
                    f"no primary in the end: bucket {index}, {self.cluster.invariants.not_served(index)}"
                )
            self.world.run_until(self.world.now_s + 0.02)

    def _demand_liveness(self) -> None:
        world, cluster, invariants = self.world, self.cluster, self.cluster.invariants
        invariants.gentle = False
        world.run_until(world.now_s + LOST_AFTER_S * 1.1 + cluster.lease_s / 4 + GRACE_S + 0.3)
        if invariants.total_losses:
            world.run_until(world.now_s + FROM_STORES_S)
        if invariants.hopeless() or any(worker.gave_up for worker in cluster.clients):
            return
        self._wait_until_served()
        invariants.gentle = True
        if world.chance(0.3):
            self._add_fourth()
        if world.chance(0.3) and not self._drained:
            self._drain(world.random.choice(list(cluster.servers)))
        world.run_until(world.now_s + COPIES_S / 2)
        self._stop_clients()
        world.run_until(world.now_s + COPIES_S / 2)
        self._wait_until_served()
        hosts = [name for name in cluster.servers if not invariants.is_drained(name)]
        invariants.check_copies(cluster.replication, hosts)
        self._check_clients()
        cluster.check_contents()

    def _stop_clients(self) -> None:
        """What is under way is to be finished."""
        for worker in self.cluster.clients:
            worker.stop_pushing()

    def _check_clients(self) -> None:
        """All that was pushed is answered."""
        for worker in self.cluster.clients:
            client = worker.client
            if client is None:
                raise ViolationError(f"{worker.name} is not there in the end")
            if client.open:
                shards = sorted({shard for left in client.open.values() for shard in left})
                raise ViolationError(f"{client.name} waits for shards {shards}: {client.trouble}")
