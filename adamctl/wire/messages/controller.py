"""Typed headers of the configuration service and of membership."""

from __future__ import annotations

from adamctl.wire.messages.base import Message


class ConfigEntry(Message, frozen=True):
    """One key. `revision` is the one of its last change, 0 for a key that does not exist."""

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
    """If each key's revision is as in `conditions`, makes all changes at one new revision, else none.

    Body: MessagePack of `ConfigChanges`. (session, sequence) make a retried request be applied once.
    `known_serial` is what a CLIENT_EVICTED before said in its details: the session began after it.
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
    """`conflicts` names the keys whose condition did not hold; empty means that it was done."""

    revision: int
    conflicts: tuple[str, ...]


class ConfigWatchRequest(Message, frozen=True):
    """Answers when a key with the prefix has changed after a revision, or after `wait_s` with nothing."""

    prefix: str
    after_revision: int
    wait_s: float


class ConfigWatchReply(Message, frozen=True):
    """Body: MessagePack list of the changed `ConfigEntry`. `reset`: history is gone, the entries are all there are."""

    revision: int
    deleted: tuple[str, ...] = ()
    reset: bool = False


class NodeRegisterRequest(Message, frozen=True):
    """A process announces itself and is given an incarnation. Addresses as in `adamctl.net.address`.

    Those for administration and replication are empty where `addresses` take that as well. `bodies_bytes_max`: memory
    for bodies of requests; `credit_bytes`: what each client may have in flight of it; 0: not said. `process`: a random
    number, by which a request that comes again is told from one of a process that has the same number by chance.
    `stores`: what it holds is also on its disk.
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


class NodeRegisterReply(Message, frozen=True):
    """Who the node is now, how often it has to send beacons, and after which silence it is lost.

    `lease_s`: for how long, from when it sent a beacon that was answered, it may believe that it is a member; 0: not
    said, four fifths of `lost_after_s`. `cluster`: the identity of the cluster, "" if it is not known.
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


class NodeLeaveRequest(Message, frozen=True):
    """A node ends in an orderly way, or whoever has reaped its process says so; its key goes at once.

    `why` is for people, for instance `has ended: killed by SIGKILL`.
    """

    node: str
    incarnation: int
    why: str = ""


class ControllerPeerRequest(Message, frozen=True):
    """One-way, between controllers: one message of their protocol in the body (docs/decisions/0008).

    `cluster` and the identities are 0 while they are not known; the sender is reached at `address`. Who has other
    `limits` is not listened to.
    """

    cluster: int
    source: int
    address: str
    destination: int
    limits: str = ""


class ControllerReplaceRequest(Message, frozen=True):
    """Puts the controller `name` at `address`, which has introduced itself, in the place of the controller `old`.

    `identity` is that of `old`, so that a repeated request exchanges nobody else; 0: not known.
    """

    old: str
    name: str
    address: str
    identity: int = 0
