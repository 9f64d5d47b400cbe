"""The records that the configuration service holds under each key.

    /nodes/{id}                 NodeRecord
    /jobs/{id}                  JobRecord
    /jobs/{id}/layout           LayoutRecord
    /jobs/{id}/buckets/{n}      BucketRecord
    /jobs/{id}/served/{node}    ServedRecord
    /drains/{node}              DrainRecord
    /retired                    RetiredRecord

Values are MessagePack arrays; fields are only ever appended. A record outside its bounds is invalid:
it can be neither created nor decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

import msgspec

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.errors import ConfigurationError
from adamctl.model.layout import Owners, ParameterLayout, Tensor, cut_layout
from adamctl.model.rule import RuleConfig

AddressKind: TypeAlias = Literal["clients", "administration", "replication"]
"""What an address accepts: pushes and pulls, operators' commands and queries, traffic between copies of buckets."""
Acks: TypeAlias = Literal["applied", "replicated", "durable"]
"""When a push is acknowledged: once it is in the primary's memory, in every in-sync copy's, or on the disk of each."""

REPLICATION_MAX = 3
HISTORY_MAX = 8
NUMBER_MAX = 1 << 62
"""Largest epoch, incarnation, revision or size: code that adds one can still encode it."""
LEAP = 1 << 32
"""By how much the restore of a backup raises revisions, incarnations and epochs: above all that were ever issued."""
TEXT_CHARACTERS_MAX = 4096
"""Longest folder, address or reason."""
LIST_ITEMS_MAX = 64
"""Most names, addresses or changes in one record."""
UNIX_S_MAX = 1e11
KEPT_MAX = 100_000


def default_acks(replication: int) -> Acks:
    """Returns when pushes are acknowledged by default."""
    return "replicated" if replication > 1 else "applied"


def default_min_in_sync(replication: int) -> int:
    """Returns how many copies must be in sync for a push to be acknowledged as `replicated`: 2 of 3, 1 of 2, 1 of 1.

    With 2 of 2, losing either server would stop training, so two copies would be available less often than one.
    """
    return (replication + 1) // 2


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


def _expect(right: bool, field: str, expected: str, found: object) -> None:
    """Raises ValueError, which a decoder passes on as msgspec.ValidationError."""
    if not right:
        raise ValueError(f"{field}: expected {expected}; found {str(found)[:80]!a}")


def _expect_names(field: str, names: Sequence[str]) -> None:
    right = len(names) <= LIST_ITEMS_MAX and len(set(names)) == len(names) and all(map(is_name, names))
    _expect(right, field, f"at most {LIST_ITEMS_MAX} different names of {NAME_EXPECTED}", names)


def _expect_numbers(**numbers: int) -> None:
    for field, number in numbers.items():
        _expect(0 <= number <= NUMBER_MAX, field, f"0 to {NUMBER_MAX}", number)


def _expect_texts(field: str, texts: Iterable[str]) -> None:
    for text in texts:
        right = len(text) <= TEXT_CHARACTERS_MAX and "\0" not in text
        _expect(right, field, f"at most {TEXT_CHARACTERS_MAX} characters", text)


class NodeRecord(_Record, frozen=True):
    """A registered process. `host` is equal for processes of one machine; a lost node's key is deleted.

    `failure_domain`: what fails together with it (`ps start --failure-domain`); empty: what is on its machine.

    `addresses` serve clients, and any kind whose own list is empty (Adam 3.3.4). `bodies_bytes_max`: memory for request
    bodies; `credit_bytes`: how much of it each client may have in flight; 0: unknown. `process`, `stores`: see
    `NodeRegisterRequest`.
    """

    node: str
    role: str
    incarnation: int
    addresses: tuple[str, ...]
    host: str
    pid: int
    capacity_bytes: int = 0
    administration_addresses: tuple[str, ...] = ()
    replication_addresses: tuple[str, ...] = ()
    bodies_bytes_max: int = 0
    credit_bytes: int = 0
    process: int = 0
    stores: bool = False
    failure_domain: str = ""

    @property
    def fails_with(self) -> str:
        """The failure domain: equal for nodes that are lost together.

        Without a name it is the machine, by its boot: containers with host names of their own are not kept apart.
        """
        return self.failure_domain or self.host.partition("/")[2] or self.host

    def can_keep(self, acks: Acks) -> bool:
        """Returns whether copies of a job may be placed here: durable acknowledgements need a disk."""
        return self.stores or acks != "durable"

    def __post_init__(self) -> None:
        _expect(is_name(self.node), "node", NAME_EXPECTED, self.node)
        _expect(is_name(self.role), "role", NAME_EXPECTED, self.role)
        addresses = (*self.addresses, *self.administration_addresses, *self.replication_addresses)
        _expect(len(addresses) <= LIST_ITEMS_MAX, "addresses", f"at most {LIST_ITEMS_MAX}", len(addresses))
        _expect_texts("addresses", addresses)
        _expect_texts("host", (self.host,))
        right = not self.failure_domain or is_name(self.failure_domain)
        _expect(right, "failure_domain", NAME_EXPECTED, self.failure_domain)
        _expect_numbers(
            incarnation=self.incarnation,
            pid=self.pid,
            capacity_bytes=self.capacity_bytes,
            bodies_bytes_max=self.bodies_bytes_max,
            credit_bytes=self.credit_bytes,
            process=self.process,
        )

    def is_process(self, host: str, pid: int, process: int) -> bool:
        """Returns whether a registering process is this one.

        Two containers of one machine may share a host name and both have process number 1, so the random number
        decides; the rest is compared only for processes of versions without one.
        """
        if self.process and process:
            return self.process == process
        return (self.host, self.pid) == (host, pid)

    def addresses_for(self, kind: AddressKind) -> tuple[str, ...]:
        """Returns where requests of a kind are accepted: at that kind's own addresses, else at those for clients."""
        own = {"administration": self.administration_addresses, "replication": self.replication_addresses}
        return own.get(kind, ()) or self.addresses


class JobRecord(_Record, frozen=True):
    """A job. Servers create its buckets when it appears and free them when its state is `ended`.

    `restore` is the folder of a finished checkpoint that buckets start from; empty: from `seed`. `replication`: copies
    that each bucket should have; under `acks` = `replicated` nothing is acknowledged by fewer than `min_in_sync`.
    `in_step`: number of replicas that go in step; servers hold each one's part until all have arrived; 0: none.
    `parameters_only`: of that checkpoint only the parameters are taken, rule state begins afresh (a warm start).
    `restore_checksum`: the BLAKE2b-128 of its manifest in hex; who does not find that one in the folder reads the
    checkpoint from the coordinator. Empty: everybody has the folder.
    """

    state: Literal["running", "ended"]
    layout_hash: str
    rule: RuleConfig
    seed: int
    coordinator: str = ""
    restore: str = ""
    acks: Acks = "applied"
    replication: int = 1
    min_in_sync: int = 1
    in_step: int = 0
    parameters_only: bool = False
    restore_checksum: str = ""

    def __post_init__(self) -> None:
        _expect_texts("layout_hash, restore_checksum", (self.layout_hash, self.restore_checksum))
        _expect(0 <= self.seed < 1 << 63, "seed", "at least 0 and below 2^63", self.seed)
        _expect(not self.coordinator or is_name(self.coordinator), "coordinator", NAME_EXPECTED, self.coordinator)
        _expect_texts("restore", (self.restore,))
        _expect(1 <= self.replication <= REPLICATION_MAX, "replication", f"1 to {REPLICATION_MAX}", self.replication)
        _expect_numbers(in_step=self.in_step)
        right = 1 <= self.min_in_sync <= self.replication
        _expect(right, "min_in_sync", f"1 to {self.replication}, the copies", self.min_in_sync)


class LayoutRecord(_Record, frozen=True):
    """The values that a `ParameterLayout` is derived from."""

    tensors: tuple[Tensor, ...]
    servers_expected: int
    owners: Owners | None = None

    def layout(self) -> ParameterLayout:
        """Returns the layout. Raises ValueError if none can be made from the values."""
        try:
            return cut_layout(self.tensors, self.servers_expected, self.owners)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error


class BucketChange(_Record, frozen=True):
    """A past change of a bucket's record: the epoch it started, when, what changed, and why."""

    epoch: int
    unix_s: float
    what: str
    why: str

    def __post_init__(self) -> None:
        _expect_numbers(epoch=self.epoch)
        _expect(0 <= self.unix_s <= UNIX_S_MAX, "unix_s", f"0 to {UNIX_S_MAX:g}", self.unix_s)
        _expect_texts("what, why", (self.what, self.why))


class BucketRecord(_Record, frozen=True):
    """Who holds a bucket. `epoch` grows by one with every change; `in_sync` holds the primary (0015-replication).

    `since_unix_s` and `why` describe the last change, by the clock of the host that made it: for people only. `history`
    lists the last changes, including that one, newest last.
    """

    epoch: int
    primary: str
    in_sync: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    since_unix_s: float = 0.0
    why: str = ""
    history: tuple[BucketChange, ...] = ()

    def __post_init__(self) -> None:
        _expect_numbers(epoch=self.epoch)
        _expect(is_name(self.primary), "primary", NAME_EXPECTED, self.primary)
        _expect_names("in_sync", self.in_sync)
        _expect_names("learners", self.learners)
        _expect(0 <= self.since_unix_s <= UNIX_S_MAX, "since_unix_s", f"0 to {UNIX_S_MAX:g}", self.since_unix_s)
        _expect_texts("why", (self.why,))
        _expect(len(self.history) <= LIST_ITEMS_MAX, "history", f"at most {LIST_ITEMS_MAX}", len(self.history))

    def changed(
        self,
        now_unix_s: float,
        why: str,
        *,
        primary: str | None = None,
        in_sync: Sequence[str] | None = None,
        learners: Sequence[str] | None = None,
        after_epoch: int = 0,
    ) -> BucketRecord:
        """Returns the record of the next epoch, which also follows `after_epoch`; arguments left out stay unchanged."""
        new = (
            self.primary if primary is None else primary,
            self.in_sync if in_sync is None else tuple(in_sync),
            self.learners if learners is None else tuple(learners),
        )
        epoch = max(self.epoch, after_epoch) + 1
        change = BucketChange(epoch, now_unix_s, self._difference(*new), why)
        return BucketRecord(epoch, *new, now_unix_s, why, (*self.history, change)[-HISTORY_MAX:])

    def restored_since(self, epoch: int) -> bool:
        """Returns whether a backup was restored since the bucket had an epoch: nothing else moves it so far, or back.

        Then the record may be older than what servers have.
        """
        return not 0 <= self.epoch - epoch < LEAP

    def _difference(self, primary: str, in_sync: tuple[str, ...], learners: tuple[str, ...]) -> str:
        """Returns the change in words, such as `ps-2 primary after ps-1, ps-1 out of sync`."""
        parts = [f"{primary} primary after {self.primary}"] if primary != self.primary else []
        parts += [f"{node} in sync" for node in in_sync if node not in self.in_sync]
        parts += [f"{node} out of sync" for node in self.in_sync if node not in in_sync]
        parts += [f"{node} learns" for node in learners if node not in self.learners]
        gone = [node for node in self.learners if node not in learners and node not in in_sync]
        parts += [f"{node} learns no more" for node in gone]
        return ", ".join(parts) or "nothing but the epoch"


class ServedRecord(_Record, frozen=True):
    """Written before a server serves its buckets of a job: from then on a process of that name has held their state.

    Without this record, nobody has pushed to that server, and its buckets can be created with the job's initial state.
    """

    incarnation: int

    def __post_init__(self) -> None:
        _expect_numbers(incarnation=self.incarnation)


class DrainRecord(_Record, frozen=True):
    """The parameter server of that name must hold nothing, as long as it is the process with this incarnation."""

    incarnation: int
    since_unix_s: float

    def __post_init__(self) -> None:
        _expect_numbers(incarnation=self.incarnation)
        _expect(0 <= self.since_unix_s <= UNIX_S_MAX, "since_unix_s", f"0 to {UNIX_S_MAX:g}", self.since_unix_s)


class RetiredRecord(_Record, frozen=True):
    """Incarnations that have ended: those up to `floor` that are not in `kept` (ascending).

    The controllers write it: an incarnation is retired when its process has been gone for longer than anything it sent
    can still be in flight. Retirement is final.
    """

    floor: int = -1
    kept: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _expect(-1 <= self.floor <= NUMBER_MAX, "floor", f"-1 to {NUMBER_MAX}", self.floor)
        rising = all(0 <= one < other for one, other in pairwise((*self.kept, self.floor + 1)))
        _expect(rising and len(self.kept) <= KEPT_MAX, "kept", f"at most {KEPT_MAX} numbers up to floor, ascending", "")

    def has(self, incarnation: int) -> bool:
        """Returns whether an incarnation is retired; 0 stands for processes without one."""
        if not 0 < incarnation <= self.floor:
            return False
        place = bisect_left(self.kept, incarnation)
        return place == len(self.kept) or self.kept[place] != incarnation


RecordT = TypeVar("RecordT", bound=_Record)


def encode(record: _Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(value: bytes, kind: type[RecordT]) -> RecordT:
    """Raises one of `adamctl.wire.unreadable.UNREADABLE` if the value is not such a record."""
    return msgspec.msgpack.decode(value, type=kind)


def node_key(node: str) -> str:
    return f"/nodes/{node}"


def job_key(job: str) -> str:
    return f"/jobs/{job}"


def layout_key(job: str) -> str:
    return f"/jobs/{job}/layout"


def bucket_key(job: str, bucket: int) -> str:
    return f"/jobs/{job}/buckets/{bucket:06d}"


def drain_key(node: str) -> str:
    return f"/drains/{node}"


RETIRED_KEY = "/retired"


def served_key(job: str, node: str) -> str:
    return f"/jobs/{job}/served/{node}"
