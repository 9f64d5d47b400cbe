"""All numbers of the wire format. Numbers are never reused; docs/formats/wire.md explains them.

Reader and writer share this file. A frame is a fixed header, a typed header and a body:

    offset  size  field
         0     4  magic, the bytes "ADMC"
         4     1  version of the frame format
         5     1  flags
         6     2  opcode
         8     8  request id, chosen by the requester, repeated in the reply
        16     4  deadline in milliseconds from receipt, 0 in replies
        20     4  length of the typed header in bytes
        24     4  length of the body in bytes
        28     4  CRC-32 of the typed header
        32     4  CRC-32 of the 32 bytes before
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final

MAGIC: Final = b"ADMC"
TLS_START: Final = b"\x16\x03"
"""How a TLS client begins: a record of the handshake, of version 3."""
VERSION_LOWEST: Final = 1
VERSION_HIGHEST: Final = 1
FRAME_HEADER: Final = Struct("<4sBBHQIIII")
FRAME_HEADER_CHECKSUM: Final = Struct("<I")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size + FRAME_HEADER_CHECKSUM.size
TYPED_HEADER_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 32 << 20
CHECKPOINT_PART_BYTES_MAX: Final = 16 << 20
"""Half of a body, so that two parts of checkpoints are in memory in place of one whole body."""
BODY_ALIGNMENT_BYTES: Final = 64  # arrays in pushes and in examples start at multiples of this


class Flag(IntFlag):
    """REPLY marks an answer, ERROR an answer with an `ErrorReply` as its header, ONE_WAY a request without answer."""

    NONE = 0
    REPLY = 1
    ERROR = 2
    ONE_WAY = 4


class Opcode(IntEnum):
    """What a frame requests. A reply repeats its request's opcode."""

    HELLO = 1
    STATUS = 2
    CREDIT = 3
    SHUTDOWN = 4
    MEMORY_REGISTER = 5
    PROVE = 6
    CONFIG_READ = 16
    CONFIG_COMPARE_AND_SET = 17
    CONFIG_WATCH = 18
    NODE_REGISTER = 19
    NODE_BEACON = 20
    NODE_LEAVE = 21
    CONTROLLER_PEER = 22
    CONTROLLER_REPLACE = 23
    CONTROLLER_BACKUP = 24
    CONTROLLER_RESTORE = 25
    PS_ATTACH = 32
    PS_PUSH = 33
    PS_PULL = 34
    PS_CHECKPOINT = 35
    PS_REPLICA_PREPARE = 36
    PS_REPLICA_STATE = 37
    PS_REPLICA_FETCH = 38
    PS_EVALUATE = 39
    PS_ACCUMULATE = 40
    PS_ROUND = 41
    PS_COMMIT = 42
    PS_CHECKPOINT_PART = 43
    PS_CHECKPOINT_READ = 44
    DATA_OPEN = 48
    DATA_READ = 49
    RUN_JOIN = 64
    RUN_NEXT_TASK = 65
    RUN_STATUS = 66
    RUN_STOP = 67
    RUN_CHECKPOINT = 68
    RUN_STEP = 69
    GROUP_WATCH = 70
    GROUP_DROP = 71
    RUN_BUNDLES = 72
    PART_ATTACH = 80
    PART_READY = 81
    PART_TASK = 82
    PART_DONE = 83
    PART_FLUSH = 84
    PART_END = 85
    PART_DATA = 86
    PART_STATUS = 87
    PART_GRANT = 88
    PART_STEP = 89
    PART_EXAMPLES = 90
    PART_PULL = 91
    PART_PORTIONS = 92
    PART_BUNDLE = 93
    BENCH_BLOCK = 96
    HOST_JOIN = 112
    HOST_ORDERS = 113
    HOST_REPORT = 114
    HOST_TAIL = 115


class ErrorCode(IntEnum):
    """Why a request, or one shard of it, was refused."""

    OK = 0
    INTERNAL = 1
    UNKNOWN_OPCODE = 2
    BAD_MESSAGE = 3
    UNSUPPORTED_VERSION = 4
    WRONG_TOKEN = 5
    DEADLINE_PASSED = 6
    OVER_QUOTA = 7
    SHUTTING_DOWN = 8
    WRONG_ADDRESS = 9
    NOT_SHAREABLE = 10
    UNKNOWN_REGION = 11
    NOT_ALLOWED = 12
    WRONG_CLUSTER = 13
    WRONG_IDENTITY = 14
    UNKNOWN_JOB = 32
    UNKNOWN_SHARD = 33
    WRONG_LENGTH = 34
    WRONG_DTYPE = 35
    NOT_FINITE = 36
    STALE_EPOCH = 37
    NEWER_EPOCH = 38
    SEQUENCE_GAP = 39
    CLIENT_EVICTED = 40
    LAYOUT_MISMATCH = 41
    NOT_READY = 42
    WRONG_KIND = 43
    STALE_EVALUATION = 44
    STALE_ROUND = 45
    NO_VECTOR = 46
    OUT_OF_RANGE = 47
    UNKNOWN_DATASET = 48
    BAD_RANGE = 49
    DAMAGED_DATA = 50
    BAD_CONFIGURATION = 51
    STALE_INCARNATION = 64
    RUN_ENDED = 65
    NOT_LEADER = 66
    STALE_GROUP = 67
    PLAN_MISMATCH = 68
    NEIGHBOUR_UNREACHABLE = 69
    ABANDONED = 70
    IMPLEMENTATION_MISMATCH = 71


GRADIENT_REFUSED: Final = (ErrorCode.NOT_FINITE, ErrorCode.OUT_OF_RANGE)
"""Answers to a bundle's gradient that cannot be added up, the one that says more first."""


class UpdateKind(IntEnum):
    """What a push carries: a gradient for the rule, factors whose product is one, or a delta to add unchanged."""

    GRADIENT = 0
    FACTORS = 1
    DELTA = 2


_SMALL: Final = 1 << 20
_BODY_BYTES_MAX_SMALL: Final = {
    Opcode.HELLO: 0,
    Opcode.CREDIT: 0,
    Opcode.SHUTDOWN: 0,
    Opcode.MEMORY_REGISTER: 0,
    Opcode.PROVE: 0,
    Opcode.NODE_REGISTER: _SMALL,
    Opcode.NODE_BEACON: _SMALL,
    Opcode.NODE_LEAVE: 0,
    Opcode.CONTROLLER_REPLACE: 0,
    Opcode.PS_ATTACH: _SMALL,
    Opcode.PS_EVALUATE: 0,
    Opcode.PS_ROUND: _SMALL,
    Opcode.PS_COMMIT: _SMALL,
    Opcode.RUN_STATUS: _SMALL,
    Opcode.RUN_STOP: 0,
    Opcode.RUN_CHECKPOINT: 0,
    Opcode.RUN_STEP: 0,
    Opcode.GROUP_WATCH: 0,
    Opcode.GROUP_DROP: 0,
    Opcode.RUN_BUNDLES: 0,
    Opcode.PART_ATTACH: 0,
    Opcode.PART_READY: 0,
    Opcode.PART_TASK: 0,
    Opcode.PART_DONE: 0,
    Opcode.PART_FLUSH: 0,
    Opcode.PART_END: 0,
    Opcode.PART_STATUS: 0,
    Opcode.PART_GRANT: 0,
    Opcode.PART_STEP: 0,
    Opcode.PART_EXAMPLES: 0,
    Opcode.PART_PULL: 0,
    Opcode.PART_PORTIONS: 0,
    Opcode.PART_BUNDLE: 0,
    Opcode.HOST_JOIN: _SMALL,
    Opcode.HOST_ORDERS: _SMALL,
    Opcode.HOST_REPORT: _SMALL,
    Opcode.HOST_TAIL: _SMALL,
}


def body_bytes_max(opcode: int) -> int:
    """Returns the longest body an opcode may carry, checked before anything is allocated."""
    return _BODY_BYTES_MAX_SMALL.get(Opcode(opcode), BODY_BYTES_MAX)
