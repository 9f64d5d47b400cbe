"""Role processes of an agent that are not there: they serve at once and end when they are told to, or at will."""

from __future__ import annotations

from dataclasses import dataclass, field

from adamctl.roles.host.core.instructions import StartProcess
from adamctl.wire.messages import HostCredentials, HostEnded, HostReading, HostServing, Report


@dataclass
class FakeProcesses:
    """Processes that serve at once and end when they are told to."""

    living: dict[str, int] = field(default_factory=dict)
    credentials: dict[str, HostCredentials | None] = field(default_factory=dict)
    news: list[Report] = field(default_factory=list)
    closed: bool = False
    forgotten: bool = False
    kept_for: str = ""
    deaf: bool = False
    """They take their time to end, until they are killed."""

    def start(self, what: StartProcess) -> HostEnded | None:
        if what.needs:
            return HostEnded(what.node, what.attempt, 2, 0, "there is no /data", 2, retry_helps=False)
        self.living[what.node], self.credentials[what.node] = what.attempt, what.credentials
        self.news.append(HostServing(what.node, what.attempt, (f"memory://{what.node}",), 1))
        return None

    def changes(self) -> list[Report]:
        news, self.news = self.news, []
        return news

    def end(self, node: str, status: int) -> None:
        if node in self.living:
            self.news.append(HostEnded(node, self.living.pop(node), status, 1))

    def signal(self, node: str) -> None:
        if not self.deaf:
            self.end(node, 143)

    def kill(self, node: str) -> None:
        self.end(node, -9)

    def tail(self, node: str, count: int) -> tuple[str, list[str]]:
        return f"/logs/{node}.log", [f"line {number}" for number in range(count)]

    def readings(self) -> list[HostReading]:
        return [HostReading(node, 1.0, 7) for node in self.living]

    def forget(self) -> None:
        self.forgotten = True

    def forget_others(self, run: str) -> None:
        self.kept_for = run

    def close(self) -> None:
        self.closed = True
        self.living.clear()
