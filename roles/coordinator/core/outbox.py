"""The instructions that one step of a run gathers for its shell."""

from __future__ import annotations

from collections.abc import Iterable

from adamctl.roles.coordinator.core.instructions import Answer, Instruction, Refuse, Say
from adamctl.wire.messages import NextTaskReply


class Outbox:
    """Keeps instructions in the order in which the shell carries them out."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []

    def __len__(self) -> int:
        return len(self._instructions)

    def put(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def extend(self, instructions: Iterable[Instruction]) -> None:
        self._instructions.extend(instructions)

    def answer(self, token: int, reply: NextTaskReply) -> None:
        self.put(Answer(token, reply))

    def refuse(self, token: int, code: int, message: str) -> None:
        self.put(Refuse(token, code, message))

    def say(self, text: str) -> None:
        self.put(Say(text))

    def take(self) -> list[Instruction]:
        """Returns everything gathered so far, and forgets it."""
        taken, self._instructions = self._instructions, []
        return taken
