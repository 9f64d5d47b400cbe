"""The typed headers: one struct per request and reply, encoded by msgspec as MessagePack arrays.

Fields are only ever appended, with a default, so that both neighbours of a version understand each other. Lengths and
offsets are bytes, counts are elements, durations end in their unit. What may grow beyond 64 KiB travels in the body.
"""

from __future__ import annotations

from typing import TypeAlias

from adamctl.wire.constants import Opcode
from adamctl.wire.messages.base import Message
from adamctl.wire.messages.common import (
    BenchBlockRequest,
    CreditGrant,
    Empty,
    ErrorReply,
    Hello,
    HelloReply,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from adamctl.wire.messages.controller import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigCompareAndSetRequest,
    ConfigEntry,
    ConfigReadReply,
    ConfigReadRequest,
    ConfigWatchReply,
    ConfigWatchRequest,
    ControllerPeerRequest,
    ControllerReplaceRequest,
    NodeBeaconRequest,
    NodeLeaveRequest,
    NodeRegisterReply,
    NodeRegisterRequest,
)
from adamctl.wire.messages.coordinator import (
    EvaluateTask,
    NextTaskReply,
    NextTaskRequest,
    RunCheckpointReply,
    RunCheckpointRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStatusReply,
    RunStatusRequest,
    RunStopRequest,
    TaskReport,
    TrainTask,
)
from adamctl.wire.messages.data import DataOpenReply, DataOpenRequest, DataReadReply, DataReadRequest
from adamctl.wire.messages.ps import (
    AttachReply,
    AttachRequest,
    CheckpointFile,
    CheckpointReply,
    CheckpointRequest,
    PulledPart,
    PullReply,
    PullRequest,
    PushPart,
    PushReply,
    PushRequest,
    PushResult,
    PushSource,
)

__all__ = [
    "MESSAGES",
    "OPCODE_OF_REQUEST",
    "AttachReply",
    "AttachRequest",
    "BenchBlockRequest",
    "CheckpointFile",
    "CheckpointReply",
    "CheckpointRequest",
    "ConfigChanges",
    "ConfigCompareAndSetReply",
    "ConfigCompareAndSetRequest",
    "ConfigEntry",
    "ConfigReadReply",
    "ConfigReadRequest",
    "ConfigWatchReply",
    "ConfigWatchRequest",
    "ControllerPeerRequest",
    "ControllerReplaceRequest",
    "CreditGrant",
    "DataOpenReply",
    "DataOpenRequest",
    "DataReadReply",
    "DataReadRequest",
    "Empty",
    "ErrorReply",
    "EvaluateTask",
    "Hello",
    "HelloReply",
    "Message",
    "NextTaskReply",
    "NextTaskRequest",
    "NodeBeaconRequest",
    "NodeLeaveRequest",
    "NodeRegisterReply",
    "NodeRegisterRequest",
    "Pair",
    "PullReply",
    "PullRequest",
    "PulledPart",
    "PushPart",
    "PushReply",
    "PushRequest",
    "PushResult",
    "PushSource",
    "RunCheckpointReply",
    "RunCheckpointRequest",
    "RunJoinReply",
    "RunJoinRequest",
    "RunStatusReply",
    "RunStatusRequest",
    "RunStopRequest",
    "ShutdownRequest",
    "StatusReply",
    "StatusRequest",
    "TaskReport",
    "TrainTask",
]

Pair: TypeAlias = tuple[type[Message], type[Message]]

MESSAGES: dict[Opcode, Pair] = {
    Opcode.HELLO: (Hello, HelloReply),
    Opcode.STATUS: (StatusRequest, StatusReply),
    Opcode.CREDIT: (CreditGrant, Empty),
    Opcode.SHUTDOWN: (ShutdownRequest, Empty),
    Opcode.CONFIG_READ: (ConfigReadRequest, ConfigReadReply),
    Opcode.CONFIG_COMPARE_AND_SET: (ConfigCompareAndSetRequest, ConfigCompareAndSetReply),
    Opcode.CONFIG_WATCH: (ConfigWatchRequest, ConfigWatchReply),
    Opcode.NODE_REGISTER: (NodeRegisterRequest, NodeRegisterReply),
    Opcode.NODE_BEACON: (NodeBeaconRequest, Empty),
    Opcode.NODE_LEAVE: (NodeLeaveRequest, Empty),
    Opcode.CONTROLLER_PEER: (ControllerPeerRequest, Empty),
    Opcode.CONTROLLER_REPLACE: (ControllerReplaceRequest, Empty),
    Opcode.PS_ATTACH: (AttachRequest, AttachReply),
    Opcode.PS_PUSH: (PushRequest, PushReply),
    Opcode.PS_PULL: (PullRequest, PullReply),
    Opcode.PS_CHECKPOINT: (CheckpointRequest, CheckpointReply),
    Opcode.DATA_OPEN: (DataOpenRequest, DataOpenReply),
    Opcode.DATA_READ: (DataReadRequest, DataReadReply),
    Opcode.RUN_JOIN: (RunJoinRequest, RunJoinReply),
    Opcode.RUN_NEXT_TASK: (NextTaskRequest, NextTaskReply),
    Opcode.RUN_STATUS: (RunStatusRequest, RunStatusReply),
    Opcode.RUN_STOP: (RunStopRequest, Empty),
    Opcode.RUN_CHECKPOINT: (RunCheckpointRequest, RunCheckpointReply),
    Opcode.BENCH_BLOCK: (BenchBlockRequest, Empty),
}

OPCODE_OF_REQUEST: dict[type[Message], Opcode] = {pair[0]: opcode for opcode, pair in MESSAGES.items()}
