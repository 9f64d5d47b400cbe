"""Is what the clients saw possible for one store that does one thing at a time, between request and answer?

Every change has its own revision and writes values that nothing else writes, so the revisions are the order, and it is
enough to check that they agree with real time, with the conditions, and with what reads return. A change whose outcome
its client never heard counts from when a read shows it. Time: sorting, and one look per operation.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adamctl.wire.messages import ConfigChanges
from tests.sim.engine import ViolationError, World


class NotOneStoreError(ViolationError):
    """No order of the operations explains what their clients saw."""

    def __init__(self, details: str) -> None:
        super().__init__(f"a history of no single store: {details}")


@dataclass
class Operation:
    """`revision` is the change's own, or that of the state a read or a conflict saw; 0: outcome not known."""

    client: str
    kind: str
    invoked_s: float
    changes: ConfigChanges | None = None
    completed_s: float = float("inf")
    revision: int = 0
    conflicts: Sequence[str] = ()
    entries: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return self.kind == "change" and self.revision > 0 and not self.conflicts


class History:
    """What all clients did."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: list[Operation] = []
        self._known: set[int] = set()

    def invoke(self, client: str, kind: str, changes: ConfigChanges | None = None) -> Operation:
        operation = Operation(client, kind, self.world.now_s, changes)
        self.operations.append(operation)
        return operation

    def read(self, operation: Operation, revision: int, entries: Mapping[str, tuple[bytes, int]]) -> None:
        operation.completed_s = self.world.now_s
        operation.revision = revision
        operation.entries = entries
        self.world.note(operation.client, "read", "revision", revision)

    def changed(self, operation: Operation, revision: int, conflicts: Sequence[str]) -> None:
        operation.completed_s = self.world.now_s
        operation.revision = revision
        operation.conflicts = conflicts
        self.world.note(operation.client, "changed", "revision", revision, "conflicts", conflicts)

    def check(self) -> None:
        """Raises ViolationError if no order explains the history."""
        writer = {
            value: operation
            for operation in self.operations
            if operation.changes is not None
            for value in operation.changes.puts.values()
        }
        found: dict[int, int] = {}  # id of a change -> its revision
        for operation in self.operations:
            if operation.changed:
                found[id(operation)] = operation.revision
        for operation in self.operations:
            for key, (value, revision) in operation.entries.items():
                writing = writer.get(value)
                if writing is None or writing.conflicts or writing.invoked_s > operation.completed_s:
                    raise NotOneStoreError(f"{operation.client} read {value!r} under {key}, which nobody had written")
                if found.setdefault(id(writing), revision) != revision:
                    raise NotOneStoreError(f"{value!r} was written at revisions {found[id(writing)]} and {revision}")
        self._known = {operation.revision for operation in self.operations if operation.changed}
        self._check_real_time()
        writes = self._writes(found)
        for operation in self.operations:
            if operation.changed:
                self._check_conditions(operation, writes, operation.revision - 1)
            elif operation.conflicts:
                self._check_conditions(operation, writes, operation.revision)
            elif operation.kind == "read" and operation.revision:
                self._check_read(operation, writes)

    def _writes(self, found: Mapping[int, int]) -> dict[str, list[int]]:
        """Returns key -> the revisions of its changes, in order."""
        writes: dict[str, list[int]] = {}
        seen: dict[int, Operation] = {}
        for operation in self.operations:
            revision = found.get(id(operation))
            if revision is not None and operation.changes is not None:
                other = seen.setdefault(revision, operation)
                if other is not operation:
                    raise NotOneStoreError(f"revision {revision} was given to {other} and to {operation}")
                for key in operation.changes.puts:
                    insort(writes.setdefault(key, []), revision)
        return writes

    def _check_real_time(self) -> None:
        """What had ended before something began comes before it."""
        known = [operation for operation in self.operations if operation.completed_s < float("inf")]
        ended = sorted(known, key=lambda operation: operation.completed_s)
        latest, index = 0, 0
        for operation in sorted(known, key=lambda operation: operation.invoked_s):
            while index < len(ended) and ended[index].completed_s < operation.invoked_s:
                latest = max(latest, ended[index].revision)
                index += 1
            if operation.revision < latest or (operation.changed and operation.revision == latest):
                raise NotOneStoreError(f"{operation} came after revision {latest} had been answered")

    def _check_conditions(self, operation: Operation, writes: Mapping[str, list[int]], revision: int) -> None:
        assert operation.changes is not None
        for key, expected in operation.changes.conditions.items():
            before = writes.get(key, [])
            index = bisect_right(before, revision)
            last = before[index - 1] if index else 0
            holds = last == expected
            if operation.changed and last > expected:
                raise NotOneStoreError(f"{operation} was made although {key} was at revision {last}")
            if key in operation.conflicts and holds and self._complete(expected, revision):
                raise NotOneStoreError(f"{operation} was refused although {key} was at revision {last}")

    def _complete(self, after: int, until: int) -> bool:
        """Whether every revision in between is one that a client knows: else an unheard change may have been there."""
        return all(revision in self._known for revision in range(after + 1, until + 1))

    def _check_read(self, operation: Operation, writes: Mapping[str, list[int]]) -> None:
        for key, revisions in writes.items():
            index = bisect_right(revisions, operation.revision)
            last = revisions[index - 1] if index else 0
            seen = operation.entries.get(key, (b"", 0))[1]
            if seen < last or seen > operation.revision:
                raise NotOneStoreError(
                    f"{operation.client} read {key} at {seen} when it had been at {last}: {operation}"
                )
