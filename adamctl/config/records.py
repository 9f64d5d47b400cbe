"""What the configuration service holds under each key.

    /nodes/{id}                 NodeRecord
    /jobs/{id}                  JobRecord
    /jobs/{id}/layout           LayoutRecord
    /jobs/{id}/buckets/{n}      BucketRecord
    /jobs/{id}/served/{node}    ServedRecord

Values are MessagePack arrays; fields are only ever appended.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

from adamctl.model.layout import ParameterLayout, Tensor, cut_layout
from adamctl.model.rule import RuleConfig

AddressKind: TypeAlias = Literal["clients", "administration", "replication"]
"""What an address takes: pushes and pulls, orders and questions of operators, traffic between copies of buckets."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class NodeRecord(_Record, frozen=True):
    """A process that has registered. `host` is equal for processes of one machine; a lost node's key is deleted.

    `addresses` take clients, and what the two others are empty for (Adam 3.3.4). `bodies_bytes_max`: memory for bodies
    of requests; `credit_bytes`: what each client may have in flight of it; 0: not said.
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

    def addresses_for(self, kind: AddressKind) -> tuple[str, ...]:
        """Returns where requests of a kind are taken: at addresses of their own, else where those of clients are."""
        own = {"administration": self.administration_addresses, "replication": self.replication_addresses}
        return own.get(kind, ()) or self.addresses


class JobRecord(_Record, frozen=True):
    """A job. Servers make its buckets when it appears and free them when its state is `ended`.

    `restore` is the folder of a finished checkpoint that buckets start from; empty: from `seed`. `acks` says when a
    push is acknowledged: when it is in a server's memory, or on its disk.
    """

    state: Literal["running", "ended"]
    layout_hash: str
    rule: RuleConfig
    seed: int
    coordinator: str = ""
    restore: str = ""
    acks: Literal["applied", "durable"] = "applied"


class LayoutRecord(_Record, frozen=True):
    """What a `ParameterLayout` is derived from."""

    tensors: tuple[Tensor, ...]
    servers_expected: int

    def layout(self) -> ParameterLayout:
        return cut_layout(self.tensors, self.servers_expected)


class BucketRecord(_Record, frozen=True):
    """Who holds a bucket. `epoch` grows with every change."""

    epoch: int
    primary: str
    in_sync: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()


class ServedRecord(_Record, frozen=True):
    """Written before a server serves its buckets of a job: from then on a process of that name has had their state.

    Where there is none, nobody has pushed anything to that server, and buckets can be made as the job began.
    """

    incarnation: int


RecordT = TypeVar("RecordT", bound=_Record)


def encode(record: _Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(value: bytes, kind: type[RecordT]) -> RecordT:
    """Raises msgspec.ValidationError if the value is not such a record."""
    return msgspec.msgpack.decode(value, type=kind)


def node_key(node: str) -> str:
    return f"/nodes/{node}"


def job_key(job: str) -> str:
    return f"/jobs/{job}"


def layout_key(job: str) -> str:
    return f"/jobs/{job}/layout"


def bucket_key(job: str, bucket: int) -> str:
    return f"/jobs/{job}/buckets/{bucket:06d}"


def served_key(job: str, node: str) -> str:
    return f"/jobs/{job}/served/{node}"
