"""Controllers are lost for good, and a backup is restored onto new ones while servers and nodes go on asking.

The cluster changes between backup and loss, so what is restored is older than what everybody has seen. The new
controllers stand at the addresses of the old ones, crash and lose messages as those do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from adamctl.config.records import BucketRecord, JobRecord, bucket_key, decode, encode, job_key
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.instructions import Answer, Refuse, Send
from adamctl.roles.controller.core.paxos.messages import Entry
from adamctl.roles.controller.core.service.commands import Join, carry_out, decode_commands
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.events import CompareAndSet, Event, Read, RestoreBackup, TakeBackup
from adamctl.roles.controller.core.service.state import KeyState
from adamctl.wire.messages import ConfigChanges
from tests.sim.controllers.clients import Caller
from tests.sim.controllers.controller import SimController
from tests.sim.controllers.nodes import Leases, SimNode
from tests.sim.controllers.scenario import ELECTIONS_S, config_of
from tests.sim.engine import Clock, NetworkFaults, ViolationError, World

BUCKETS = 3
JOB = "j"
MAKER = "c-0"
CALL_S = 3.0
AFTER_S = 8.0
"""How long all goes on after the restore."""
AFTER_S_MAX = 60.0


def job_record(number: int) -> bytes:
    """Returns one of many different records of the job."""
    return encode(JobRecord("running", "h", RuleConfig("add"), number, MAKER))


class OneHistory:
    """What has been decided in either cluster, as people see it: one cluster that nothing ever goes back in.

    Attributes:
        epochs: bucket -> the highest decided so far.
        restored: how often a backup has taken the place of all keys.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.restored = 0
        self._values: dict[tuple[str, int], bytes] = {}
        self._incarnations: set[int] = set()

    def put(self, key: str, revision: int, value: bytes) -> None:
        """A key has a value from a revision on."""
        if self._values.setdefault((key, revision), value) != value:
            raise ViolationError(f"a revision twice: {key} has two values at revision {revision}")
        if "/buckets/" in key:
            epoch = decode(value, BucketRecord).epoch
            if epoch <= self.epochs.get(key, 0):
                raise ViolationError(f"an epoch goes back: {key} from {self.epochs[key]} to {epoch}")
            self.epochs[key] = epoch

    def issued(self, incarnation: int) -> None:
        if incarnation in self._incarnations:
            raise ViolationError(f"an incarnation twice: {incarnation}")
        self._incarnations.add(incarnation)


class Truth:
    """Watches the controllers of one cluster, and tells `OneHistory` of each slot once."""

    def __init__(self, history: OneHistory, config: ControllerConfig) -> None:
        self._history = history
        self._slots = 0
        self._state = KeyState(history_keys_max=config.history_keys_max, sessions_max=config.sessions_max)

    def applied(self, host: SimController, entry: Entry, digest: int) -> None:
        if entry.slot != self._slots + 1:
            return
        self._slots = entry.slot
        for command in decode_commands(entry.value):
            outcome = carry_out(self._state, command)
            if outcome.replaced:
                self._history.restored += 1
                for one in self._state.read("/jobs/"):
                    self._history.put(one.key, one.revision, one.value)
            if outcome.effect is not None:
                for key, value in outcome.effect.puts.items():
                    self._history.put(key, outcome.effect.revision, value)
            if isinstance(command, Join) and outcome.effect is not None and outcome.record is not None:
                self._history.issued(outcome.record.incarnation)

    def sending(self, host: SimController, instruction: Send) -> None: ...

    def stepped(self, host: SimController) -> None: ...


class Writer:
    """Raises the epochs of buckets, and rewrites the job's record, each on condition of what it has read before."""

    def __init__(self, scenario: RestoreScenario, name: str) -> None:
        self._scenario, self.world = scenario, scenario.world
        self._caller = Caller(self.world, name, scenario.hosts)
        self._name, self._sequence = name, 0
        self._serial = 0
        self.written = 0

    def begin(self) -> None:
        self._call(lambda token: Read(token, f"/jobs/{JOB}"), self._read)

    def _call(self, event: Callable[[int], Event], done: Callable[[Answer | Refuse | None], None]) -> None:
        self._caller.call(event, done, CALL_S)

    def _read(self, answer: Answer | Refuse | None) -> None:
        entries = answer.entries or () if isinstance(answer, Answer) else ()
        if not entries:
            self._later()
            return
        entry = self.world.random.choice(entries)
        self._scenario.numbers += 1
        if "/buckets/" in entry.key:
            value = encode(decode(entry.value, BucketRecord).changed(0.0, str(self._scenario.numbers)))
        else:
            value = job_record(self._scenario.numbers)
        changes = ConfigChanges({entry.key: entry.revision}, {entry.key: value})
        pause_s = self.world.random.choice((0.0, 0.0, 6.0)) * self.world.random.random()  # perhaps until it is late
        self.world.after(pause_s, partial(self._write, changes))

    def _write(self, changes: ConfigChanges) -> None:
        self._sequence += 1
        session = f"{self._name}-{self._sequence}"
        self._call(
            lambda token: CompareAndSet(token, session, 1, changes, self._serial, "coordinator", MAKER), self._wrote
        )

    def _wrote(self, answer: Answer | Refuse | None) -> None:
        if isinstance(answer, Refuse):
            serial = answer.details.get("serial", self._serial)
            self._serial = serial if isinstance(serial, int) else self._serial
        elif answer is not None:
            self.written += 1
        self._later()

    def _later(self) -> None:
        self.world.after(0.02 + 0.2 * self.world.random.random(), self.begin)


class RestoreScenario:
    """One seed."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        random = self.world.random
        self.history = OneHistory()
        self.config = config_of(random.choice(ELECTIONS_S), 1.0)
        self.hosts: dict[str, SimController] = {}
        self._calm = False
        self._standing = self.hosts
        self._members(random.choice((1, 3, 3)), self.hosts)
        self.writers = [Writer(self, f"w{number}") for number in range(3)]
        leases = Leases(self.world)
        leases.checked = False  # of two clusters, one knows nothing of the other's grants
        self.nodes = [
            SimNode(self.world, f"n{number}", Caller(self.world, f"n{number}", self.hosts), self._clock(), leases, 1.0)
            for number in range(1, 4)
        ]
        self.backup = b""
        self.numbers = 0  # of values, so that no two are alike

    def _clock(self) -> Clock:
        return Clock(self.world, 1.0)

    def _members(self, count: int, hosts: dict[str, SimController]) -> None:
        """Adds controllers that have never been a cluster."""
        truth = Truth(self.history, self.config)
        peers = {name: name for name in "abc"[:count]}
        for name in peers:
            host = SimController(self.world, name, peers, self.config, truth, self._clock())
            host.hosts, host.on_crash = hosts, self._crashed
            host.crash_probability = self.world.random.choice((0.0, 0.002, 0.01))
            hosts[name] = host
            self.world.after(0.5 * self.world.random.random(), host.start)

    def _crashed(self, host: SimController) -> None:
        def again() -> None:
            if host in self._standing.values():
                host.start()

        self.world.after(0.1 if self._calm else self.world.random.random(), again)

    def run(self) -> None:
        """Raises ViolationError: something went back, or nothing goes on."""
        world, random = self.world, self.world.random
        world.network = NetworkFaults(loss=random.choice((0.0, 0.02, 0.1)), duplication=random.choice((0.0, 0.3)))
        self._until(lambda: any(host.core is not None and host.core.paxos.leading for host in self.hosts.values()))
        self._make_job()
        for actor in (*self.writers, *self.nodes):
            world.after(random.random(), actor.begin)
        world.run_until(world.now_s + 1.0 + 3.0 * random.random())
        self._keep_backup()
        world.run_until(world.now_s + random.choice((0.0, 1.0, 4.0)) * random.random())
        self._restore(self._replace_all())
        self._calm = True
        world.network = NetworkFaults()
        for host in self.hosts.values():
            host.crash_probability = 0.0
        written = [writer.written for writer in self.writers]
        world.run_until(world.now_s + AFTER_S)
        self._until(lambda: all(one.written > before for one, before in zip(self.writers, written, strict=True)))
        self._until(lambda: all(node.incarnation and node.pid > 1 for node in self.nodes))
        if self.history.restored != 1:
            raise ViolationError(f"restored {self.history.restored} times")

    def _until(self, there: Callable[[], bool]) -> None:
        until_s = self.world.now_s + AFTER_S_MAX
        while not there():
            if self.world.now_s > until_s:
                raise ViolationError(f"no progress for {AFTER_S_MAX:g} s")
            self.world.run_until(self.world.now_s + 0.1)

    def _ask(self, event: Callable[[int], Event], hosts: dict[str, SimController]) -> Answer:
        """Asks until it is answered, in turn."""
        caller, found = Caller(self.world, "operator", hosts), list[Answer]()

        def done(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer):
                found.append(answer)
            else:
                self.world.after(0.1, lambda: caller.call(event, done, CALL_S))

        caller.call(event, done, CALL_S)
        self._until(lambda: bool(found))
        return found[0]

    def _make_job(self) -> None:
        puts = {bucket_key(JOB, bucket): encode(BucketRecord(1, "n1")) for bucket in range(BUCKETS)}
        puts[job_key(JOB)] = job_record(0)
        changes = ConfigChanges(dict.fromkeys(puts, 0), puts)
        self._ask(lambda token: CompareAndSet(token, "make", 1, changes), self.hosts)

    def _keep_backup(self) -> None:
        (entry,) = self._ask(TakeBackup, self.hosts).entries or ()
        self.backup = entry.value

    def _replace_all(self) -> dict[str, SimController]:
        """The old ones are gone, with their folders; new ones stand at their addresses.

        Whoever knew the old ones does not speak to them yet: they say in HELLO that they are another cluster.
        """
        old = list(self.hosts.values())
        self._standing = {}
        for host in old:
            host.crash()
        self.world.note("world", "NEW CONTROLLERS")
        self._members(len(old), self._standing)
        return self._standing

    def _restore(self, new: dict[str, SimController]) -> None:
        self._ask(lambda token: RestoreBackup(token, self.backup), new)
        self.hosts.update(new)
        if self.world.chance(0.5):  # the operator has not heard the answer
            self.world.run_until(self.world.now_s + 3.0 * self.world.random.random())
            self._ask(lambda token: RestoreBackup(token, self.backup), self.hosts)
