"""Who is a member of the cluster, as told by changes; reports every process that no longer is (pure).

Several changes may arrive as one, so a process may come and go between two of them. A process found another way, by
reading its key at some revision, counts as soon as the changes have reached that revision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Membership:
    """`expected` (node -> incarnation) were members just before the first changes, and may be gone already."""

    def __init__(self, expected: Mapping[str, int]) -> None:
        self._known = dict(expected)
        self._found: dict[str, tuple[int, int]] = {}  # node -> incarnation, revision

    def found(self, node: str, incarnation: int, revision: int) -> None:
        """A process was a member at this revision."""
        self._found[node] = incarnation, revision

    def take(
        self, members: Mapping[str, int], deleted: Collection[str], reset: bool, revision: int
    ) -> list[tuple[str, int]]:
        """Takes changes. Returns the processes that are gone (node, incarnation).

        Args:
            members: node -> incarnation of the members that changed; of all members after a reset.
            deleted: nodes without a process.
            revision: up to which the changes are complete.
        """
        gone = [
            (node, incarnation)
            for node, incarnation in self._known.items()
            if members.get(node, incarnation) != incarnation or (node not in members and (reset or node in deleted))
        ]
        left = {} if reset else {node: known for node, known in self._known.items() if (node, known) not in gone}
        self._known = left | dict(members)
        for node, (incarnation, at) in list(self._found.items()):
            if revision >= at:
                del self._found[node]
                if self._known.get(node) != incarnation and (node, incarnation) not in gone:
                    gone.append((node, incarnation))
        return gone
