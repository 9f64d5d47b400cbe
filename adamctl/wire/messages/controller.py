"""Typed headers of the configuration service and of membership."""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class ConfigEntry(Message, frozen=True):
    """One key. `revision` is that of its last change, 0 for a key that does not exist."""

    key: str
    value: bytes
    revision: int


class ConfigReadRequest(Message, frozen=True):
    """Linearizable read of all keys with a prefix (a whole key is the prefix of itself)."""

    prefix: str


class ConfigReadReply(Message, frozen=True):
    """Body: MessagePack list of `ConfigEntry`, sorted by key."""

    revision: int


class ConfigCompareAndSetRequest(Message, frozen=True):
    """If each key has the revision in `conditions`, makes all changes at one new revision, else none.

    Body: MessagePack of `ConfigChanges`. (session, sequence) ensure that a retried request is applied once.
    `known_serial` comes from the details of an earlier CLIENT_EVICTED: the session started after it.
    """

    session: str
    sequence: int
    known_serial: int = 0


class ConfigChanges(Message, frozen=True):
    """`conditions` maps key -> revision that must hold (0: must not exist)."""

    conditions: dict[str, int]
    puts: dict[str, bytes]
    deletes: tuple[str, ...] = ()


class ConfigCompareAndSetReply(Message, frozen=True):
    """`conflicts` names the keys whose condition did not hold; empty means success."""

    revision: int
    conflicts: tuple[str, ...]


class ConfigWatchRequest(Message, frozen=True):
    """Answers when a key with the prefix has changed after a revision, or after `wait_s` with nothing."""

    prefix: str
    after_revision: int
    wait_s: float


class ConfigWatchReply(Message, frozen=True):
    """Body: MessagePack list of the changed `ConfigEntry`. `reset`: history is gone, entries are the whole state."""

    revision: int
    deleted: tuple[str, ...] = ()
    reset: bool = False


class NodeRegisterRequest(Message, frozen=True):
    """A process registers and gets an incarnation. Addresses as in `adamctl.net.address`.

    Those for administration and replication are empty if `addresses` serve that as well. `bodies_bytes_max`: memory for
    request bodies; `credit_bytes`: how much of it each client may have in flight; 0: unknown. `process`: a random
    number that distinguishes a repeated request from another process with the same process number. `stores`: it also
    keeps what it holds on disk. `failure_domain`: the name of what fails together with it; empty: its machine. `waits`:
    if another process has the name and lives, it is waited for, not refused: who started this one has seen to its end,
    or knows that its host is lost.
    """

    node: str
    role: str
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
    waits: bool = False


class NodeRegisterReply(Message, frozen=True):
    """The node's identity, how often it must send beacons, and after which silence it counts as lost.

    `lease_s`: for how long after sending an answered beacon it may consider itself a member; 0: unknown, then four
    fifths of `lost_after_s`. `cluster`: the identity of the cluster, "" if unknown.
    """

    incarnation: int
    beacon_interval_s: float
    lost_after_s: float
    lease_s: float = 0.0
    cluster: str = ""


class NodeBeaconRequest(Message, frozen=True):
    """Sent every beacon interval; refused with STALE_INCARNATION when a newer process has taken the name."""

    node: str
    incarnation: int


class NodeBeaconReply(Message, frozen=True):
    """It is still a member. `controllers`: where the present ones reach each other; empty if there is only one."""

    controllers: tuple[str, ...] = ()


class NodeLeaveRequest(Message, frozen=True):
    """A node leaves in an orderly way, or the parent that reaped its process says so; its key is deleted at once.

    `why` is for people, for example `has ended: killed by SIGKILL`.
    """

    node: str
    incarnation: int
    why: str = ""


class ControllerPeerRequest(Message, frozen=True):
    """One-way, between controllers: one message of their protocol in the body (docs/decisions/0008).

    `cluster` and the identities are 0 while unknown; the sender is reachable at `address`. A sender with other `limits`
    is ignored.
    """

    cluster: int
    source: int
    address: str
    destination: int
    limits: str = ""


class ControllerReplaceRequest(Message, frozen=True):
    """Replaces the controller `old` with the controller `name` at `address`, which has introduced itself.

    `identity` is that of `old`, so that a repeated request replaces no other controller; 0: unknown.
    """

    old: str
    name: str
    address: str
    identity: int = 0


class ControllerBackupRequest(Message, frozen=True):
    """Asks for the whole configuration, linearizable."""


class ControllerBackupReply(Message, frozen=True):
    """The body holds one entry: its value is a `Backup` (docs/formats/controller-store.md), taken at this revision."""

    revision: int


class ControllerRestoreRequest(Message, frozen=True):
    """Puts the backup in the body in the place of all keys, once. Only new controllers, without a job, take it."""


class ControllerRestoreReply(Message, frozen=True):
    """Revision and highest incarnation are above all that the cluster in the backup can have had.

    `left_out`: keys whose records cannot be read.
    """

    revision: int
    incarnation: int
    left_out: tuple[str, ...] = ()
