"""One seed: controllers, clients and nodes; a phase in which all goes wrong, and one in which it must go well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.paxos.messages import Ballot
from adamctl.roles.controller.core.paxos.paxos_core import PaxosConfig
from adamctl.roles.controller.core.service.commands import Part
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.events import Replace
from tests.sim.controllers.clients import Caller, SimClient
from tests.sim.controllers.controller import SimController, SimCore
from tests.sim.controllers.history import History
from tests.sim.controllers.invariants import Invariants
from tests.sim.controllers.nodes import DRIFTS, Leases, SimNode, lease_share
from tests.sim.engine import Clock, NetworkFaults, ViolationError, World

KINDS = (
    "crash",
    "crash",
    "pause",
    "cut",
    "one-way",
    "split",
    "depose",
    "depose",
    "depose",
    "heal",
    "weather",
    "young",
    "jump",
    "wipe",
)
KINDS_OF_SHORT_LIVES = ("snub", "snub", "snub", "snub", "weather", "heal")
FAULTS_S_MIN = 12.0
FAULTS_S_MAX = 400.0
FAULTS_EVENTS_MIN = 4_000
"""Faults go on until there were so many events; with calm weather after it, a seed has more than 5,000."""
EVENTS_MIN = 5_000
CALM_S = 6.0
CALM_S_MAX = 20.0
CALM_PAUSE_S = 0.4
ELECTIONS_S = (0.3, 0.8)


def config_of(election_s: float, give_up_s: float) -> ControllerConfig:
    """Small limits, so that everything that has one is met: sessions are forgotten, members catch up by snapshots."""
    paxos = PaxosConfig(election_s / 4, election_s, give_up_s, log_bytes_max=400, part_bytes=300)
    return ControllerConfig(beacon_interval_s=0.5, lost_after_s=2.0, sessions_max=6, paxos=paxos)


@dataclass
class Result:
    seed: int
    events: int
    slots: int
    completed: int


@dataclass
class Planted:
    """A fault to be found. `mutate` changes a core after it has recovered, `host` the shell around it."""

    name: str
    about: str
    mutate: Callable[[SimCore], None] | None = None
    host: Callable[[SimController], None] | None = None


class Scenario:
    """Everything of one seed."""

    def __init__(
        self, seed: int, members: int = 0, *, planted: Planted | None = None, keep_trace: bool = False
    ) -> None:
        """`members`: 1, 3 or 5; 0: the seed decides."""
        self.world = World(seed, keep_trace=keep_trace)
        random = self.world.random
        members = members or random.choice((1, 3, 3, 3, 5, 5))
        self.leases = Leases(self.world)
        self.history = History(self.world)
        config = config_of(random.choice(ELECTIONS_S), random.choice((1.0, 1.0, 4.0)))
        self.invariants = Invariants(self.world, config, self.leases)
        drift = random.choice(DRIFTS)
        # What a leader leaves undecided does harm only if the next one decides nothing: few requests, early deaths.
        self.lives_short = random.random() < 0.25
        self.jumps = random.random() < 0.3 and not self.lives_short
        self.leases.checked = not self.jumps
        peers = {name: name for name in "abcdefgh"[:members]}
        self.hosts: dict[str, SimController] = {}
        for name in peers:
            clock = Clock(self.world, 1.0 + random.choice((-1, 1, 0)) * drift * random.random() ** 0.2)
            mutate = planted.mutate if planted is not None else None
            host = SimController(self.world, name, peers, config, self.invariants, clock, mutate)
            if planted is not None and planted.host is not None:
                planted.host(host)
            self.hosts[name] = host
        parts: set[Part] = set()
        for host in self.hosts.values():
            host.hosts = self.hosts
            host.parts = parts
            host.on_crash = self._crashed
            host.crash_at_part = 1.0 if self.lives_short else random.choice((0.0, 0.5))
        self.clients = [SimClient(self.world, f"c{number}", self.hosts, self.history) for number in range(1, 4)]
        self.quiet = self.lives_short or random.random() < 0.3
        for client, reads in zip(self.clients, (0.9, 0.3, 0.3), strict=True):
            client.reads = reads
            client.pause_s_max = 20.0 if self.lives_short else 4.0 if self.quiet else 0.1
        lease_s = config.lost_after_s * lease_share(drift)
        self.nodes = []
        for number in range(1, 4):
            clock = Clock(self.world, 1.0 + random.choice((-1, 1, 0)) * drift * random.random() ** 0.2)
            caller = Caller(self.world, f"n{number}", self.hosts)
            node = SimNode(self.world, f"n{number}", caller, clock, self.leases, lease_s)
            node.patience = 1.0 if self.lives_short else 0.7
            self.nodes.append(node)
        self.calm = False
        self._wiped = ""

    @property
    def _actors(self) -> list[SimClient | SimNode]:
        return [*self.clients, *self.nodes]

    def run(self) -> Result:
        """Runs both phases.

        Raises:
            ViolationError: something that must hold did not.
        """
        world, random = self.world, self.world.random
        for host in self.hosts.values():
            world.after(random.random() * 0.5, host.start)
        for actor in self._actors:
            world.after(random.random(), actor.begin)
        self._set_weather()
        world.after(random.random() * 2.0, self._misfortune)
        world.run_until(FAULTS_S_MIN)
        while world.events < FAULTS_EVENTS_MIN and world.now_s < FAULTS_S_MAX:
            world.run_until(world.now_s + 1.0)
        self._end_faults()
        before = [client.completed for client in self.clients]
        calm_until_s = world.now_s + CALM_S_MAX
        world.run_until(world.now_s + CALM_S)
        while (problem := self._standstill(before)) and world.now_s < calm_until_s:
            world.run_until(world.now_s + 1.0)
        if problem:
            raise ViolationError(f"no progress: {problem}")
        self._check_incarnations()
        while world.events < EVENTS_MIN:
            world.run_until(world.now_s + 1.0)
        self.history.check()
        completed = sum(client.completed for client in self.clients)
        return Result(world.seed, world.events, len(self.invariants.decided), completed)

    # --- faults -----------------------------------------------------------------------------------------------------

    def _set_weather(self) -> None:
        random = self.world.random
        self.world.network = NetworkFaults(
            delay_s_max=random.choice((0.002, 0.01, 0.1)),
            loss=random.choice((0.0, 0.0, 0.02, 0.2)),
            duplication=random.choice((0.0, 0.1, 0.5)),
            reordering=random.choice((0.0, 0.1, 0.4)),
            late_s_max=random.choice((0.05, 0.5, 3.0)),
        )
        crash = random.choice((0.0, 0.002, 0.01))
        for host in self.hosts.values():
            host.crash_probability = crash
            host.disk_s_max = random.choice((0.001, 0.005, 0.05, 0.5))

    def _misfortune(self) -> None:
        """Something happens; and again later."""
        if self.calm:
            return
        world, random = self.world, self.world.random
        host = random.choice(list(self.hosts.values()))
        if random.random() < (1.0 if self.lives_short else 0.5):  # the leader is where it hurts
            leading = [one for one, core in self._up() if core.paxos.leading]
            host = random.choice(leading) if leading else host
        kind = random.choice(KINDS_OF_SHORT_LIVES if self.lives_short else KINDS)
        match kind:
            case "crash":
                host.crash()
            case "pause":
                host.pause()
                world.after(random.random() * random.choice((0.3, 1.0, 4.0)), host.resume)
            case "cut":
                self._cut([host.name], both=True)
            case "one-way":
                self._cut([host.name], both=False)
            case "split":
                count = random.randint(1, max(1, len(self.hosts) - 1))
                self._cut(random.sample(list(self.hosts), count), both=True)
            case "depose":
                self._depose(host)
            case "snub":
                self._snub(host)
            case "young":
                self._kill_the_next_leader()
            case "heal":
                world.note("network", "healed")
                world.cut.clear()
            case "weather":
                self._set_weather()
            case "jump" if self.jumps:
                host.clock.jump(random.random() * 3.0)
            case "wipe" if not self._wiped and len(self.hosts) > 1 and random.random() < 0.5:
                self._wipe(host)
        pause_s = random.choice((0.2, 1.0, 3.0)) * random.random() if kind != "snub" else 2.0 + 3.0 * random.random()
        world.after(pause_s if kind != "depose" or random.random() < 0.3 else 4.0, self._misfortune)

    def _depose(self, host: SimController) -> None:
        """The others elect another, while some of the clients and nodes can only talk to this one."""
        actors = [actor.name for actor in self._actors if self.world.chance(0.6)]
        others = [name for name in self.hosts if name != host.name]
        self.world.note("network", "cut", host.name, "and", actors, "from", others, "and nothing else")
        self.world.cut.clear()
        for name in (host.name, *actors):
            for other in others:
                self.world.cut |= {(name, other), (other, name)}

    def _snub(self, host: SimController) -> None:
        """A node that the others could hear is lost to this one alone."""
        node = self.world.random.choice(self.nodes)
        self.world.note("network", "cut", host.name, "from", node.name)
        links = {(host.name, node.name), (node.name, host.name)}
        self.world.cut |= links
        self.world.after(4.0, lambda: self.world.cut.difference_update(links))

    def _up(self) -> list[tuple[SimController, SimCore]]:
        return [(host, host.core) for host in self.hosts.values() if host.core is not None]

    def _kill_the_next_leader(self) -> None:
        """Whoever begins to lead next dies soon after it, perhaps before it has decided anything."""
        known = max((core.paxos.acceptor.vote.promised for _, core in self._up()), default=Ballot())

        def look(tries: int) -> None:
            if self.calm:
                return
            leaders = [(host, core.paxos.leadership) for host, core in self._up() if core.paxos.leading]
            young = [host for host, leadership in leaders if leadership is not None and leadership.ballot > known]
            if young:
                self.world.after(self.world.random.random() * 1.2, lambda: self._crash(young[0]))
            elif tries:
                self.world.after(0.02, lambda: look(tries - 1))

        look(200)

    def _crash(self, host: SimController) -> None:
        if not self.calm:
            host.crash()

    def _cut(self, names: list[str], *, both: bool) -> None:
        """Cuts some off from the other controllers, and perhaps from everybody else."""
        random = self.world.random
        everybody = [*self.hosts, *(actor.name for actor in self._actors)]
        others = [name for name in (everybody if random.random() < 0.3 else self.hosts) if name not in names]
        outward = random.random() < 0.5
        self.world.note("network", "cut", names, "from", others, "both ways" if both else "one way")
        for name in names:
            for other in others:
                if both or outward:
                    self.world.cut.add((name, other))
                if both or not outward:
                    self.world.cut.add((other, name))

    def _crashed(self, host: SimController) -> None:
        random = self.world.random
        pause_s = 0.1 if self.calm else random.random() * random.choice((0.05, 0.5, 3.0))
        if self.lives_short and not self.calm:
            pause_s = 1.0 + 1.5 * random.random()  # away while the next leader is elected, back for the one after
            if random.random() < 0.7:
                self._kill_the_next_leader()
        self.world.after(pause_s, host.start)

    def _wipe(self, host: SimController) -> None:
        """A member loses its folder, once per seed, while no other has; an operator puts the new one in its place."""
        if any(one.disk.vote is None or not one.disk.vote.cluster for one in self.hosts.values()):
            return
        self._wiped = host.name
        lost = host.disk.vote.identity if host.disk.vote is not None else 0
        host.wipe()
        caller = Caller(self.world, "operator", self.hosts)

        def replace(_: Answer | Refuse | None = None) -> None:
            if isinstance(_, Answer):
                self.world.note("operator", "replaced", host.name)
                return
            caller.call(lambda token: Replace(token, host.name, host.name, host.name, lost), again, 5.0)

        def again(answer: Answer | Refuse | None) -> None:
            self.world.after(0.2, lambda: replace(answer))

        self.world.after(1.0, replace)

    def _end_faults(self) -> None:
        self.world.note("world", "CALM", "from here on everything works")
        self.calm = True
        self.world.network = NetworkFaults()
        self.world.cut.clear()
        for client in self.clients:
            client.wake(CALM_PAUSE_S)
        for host in self.hosts.values():
            host.crash_probability = host.crash_at_part = 0.0
            host.disk_s_max = 0.002
            host.resume()
            host.start()

    # --- afterwards -------------------------------------------------------------------------------------------------

    def _standstill(self, before: list[int]) -> str:
        """Returns who has made no progress in calm weather; "" if all have."""
        for client, completed in zip(self.clients, before, strict=True):
            if client.completed < completed + 5:
                return f"{client.name} did {client.completed - completed} operations in calm weather"
        cores = [(host.name, host.core) for host in self.hosts.values()]
        most = max(core.paxos.acceptor.chosen_to for _, core in cores if core is not None)
        for name, core in cores:
            if core is None or core.paxos.acceptor.chosen_to < most - 3:
                at = core.paxos.acceptor.chosen_to if core is not None else "nowhere"
                return f"{name} is at slot {at}, others are at {most}"
        return ""

    def _check_incarnations(self) -> None:
        living = [node.incarnation for node in self.nodes if node.incarnation]
        if len(set(living)) < len(living):
            raise ViolationError(f"two nodes with one incarnation: nodes have the incarnations {living}")
