"""A controller's core that is given events by hand; times are passed in."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from adamctl.roles.controller.core.instructions import Answer, Append, Instruction
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.events import CompareAndSet, Event, Read, Register
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest

Kind = TypeVar("Kind")
CONFIG = ControllerConfig(beacon_interval_s=1.0, lost_after_s=5.0, watchers_max=3, sessions_max=4, history_keys_max=8)


def only(instructions: list[Instruction], kind: type[Kind]) -> Kind:
    found = [instruction for instruction in instructions if isinstance(instruction, kind)]
    assert len(found) == 1, instructions
    return found[0]


class OpenCore(ControllerCore):
    """One that lets a front write any key, so that a test can set up what otherwise takes a whole run."""

    def step(self, event: Event, now: float) -> list[Instruction]:
        if isinstance(event, CompareAndSet) and event.role == "front":
            event = replace(event, role="")
        return super().step(event, now)


class Driven:
    """A core that is given events, and what it persisted."""

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        self.core = ControllerCore(config)
        self.core.recover(None, None, (), 0.0)
        self.persisted: list[Append] = []
        self.sequence = 0

    def step(self, event: Event, now: float = 0.0) -> list[Instruction]:
        out = self.core.step(event, now)
        self.persisted += [instruction for instruction in out if isinstance(instruction, Append)]
        return out

    def put(self, now: float = 0.0, /, **values: bytes) -> list[Instruction]:
        self.sequence += 1
        puts = {f"/{name}": value for name, value in values.items()}
        changes = ConfigChanges({}, puts)
        return self.step(CompareAndSet(0, f"put-{self.sequence}", 1, changes, self.core.state.serial), now)

    def change(self, session: str, sequence: int, changes: ConfigChanges) -> list[Instruction]:
        return self.step(CompareAndSet(7, session, sequence, changes, self.core.state.serial))

    def register(self, node: str, *, pid: int = 1, connection: int = 1, now: float = 0.0) -> list[Instruction]:
        request = NodeRegisterRequest(node, "ps", ("tcp://h:1",), "host/boot", pid)
        return self.step(Register(9, connection, request), now)

    def keys(self) -> list[str]:
        answer = only(self.step(Read(1, "/")), Answer)
        assert answer.entries is not None
        return [entry.key for entry in answer.entries]
