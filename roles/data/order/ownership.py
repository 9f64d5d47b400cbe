"""Which data server keeps which block of examples: rendezvous hashing (Thaler and Ravishankar 1998).

Every server has a score for every block, and the highest one owns it. So all who know the names of the servers agree
without a word. When a server goes, its blocks fall to the others, each to the next highest; when one comes, it takes
its share from all of them. No other block moves, and what servers keep in memory adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import Indices
from adamctl.roles.data.readers.source import FileSplit, Source, groups_of, is_sequential, own_blocks

Score = tuple[bytes, str]

SERVERS_MAX: Final = 1024
BLOCK_EXAMPLES_MAX: Final = 1024
BLOCKS_MIN: Final = 1024
"""Servers' parts of 1,024 blocks differ by a few hundredths; of the few blocks of a small set they would by much."""

FETCHED_MIN: Final = 16
"""With fewer files than these, servers' parts would differ too much."""


class Share(NamedTuple):
    """What one of several servers gives of a range: the examples whose blocks it owns.

    Attributes:
        servers: the names of those that the reader believes alive, sorted.
        receiver: which of them this one is.
        rows: int32 positions in the range, ascending, of which alone its examples are wanted; empty: of all.
    """

    servers: tuple[str, ...]
    receiver: int
    rows: bytes = b""

    @property
    def server(self) -> str:
        return self.servers[self.receiver]


def share_problem(share: Share | None, examples: int) -> str | None:
    """Returns why a share of a range of so many examples cannot be read, or None if it can."""
    if share is None:
        return None
    servers = share.servers
    if not 0 <= share.receiver < len(servers) <= SERVERS_MAX or list(servers) != sorted(set(servers)):
        return f"expected 1 to {SERVERS_MAX} sorted names of servers, with the receiver among them"
    if len(share.rows) % 4:
        return f"expected positions of 4 bytes each, found {len(share.rows)} bytes"
    rows = np.frombuffer(share.rows, np.int32)
    if len(rows) and not (rows[0] >= 0 and rows[-1] < examples and (np.diff(rows) > 0).all()):
        return f"expected ascending positions in a range of {examples} examples"
    return None


class Blocks:
    """Which block each example of a set is in: as its source reads them, else so many that follow one another."""

    def __init__(self, examples: int, groups: Indices | None = None, lengths: Indices | None = None) -> None:
        """
        Args:
            groups: [examples], equal for those that are read together, such as frames of one recording.
            lengths: [blocks] of what is read at once, such as row groups; without both, blocks are short.
        """
        self._groups = groups
        self._ends = None if groups is not None or lengths is None else np.cumsum(lengths)
        self._length = min(max(examples // BLOCKS_MIN, 1), BLOCK_EXAMPLES_MAX)

    def of(self, indices: Indices) -> Indices:
        """Returns the numbers of the blocks that examples are in; `indices` are their places in the files."""
        if self._groups is not None:
            return self._groups[indices]
        if self._ends is not None:
            return np.searchsorted(self._ends, indices, side="right")
        return indices // self._length


def blocks_of(source: Source, split: FileSplit) -> Blocks:
    """Returns the blocks of a source that servers share out: short ones, unless it must be read by its own.

    Files that are fetched are owned whole, if there are enough of them: then no two servers fetch the same. A source
    says so by a method `fetched(split)`, the lengths of what is fetched at once, [files], or None.
    """
    lengths = fetched_lengths(source, split)
    if lengths is None:
        lengths = own_blocks(source, split) if is_sequential(source) else None
    return Blocks(len(source.labels(split)), groups_of(source, split), lengths)


def fetched_lengths(source: Source, split: FileSplit) -> Indices | None:
    """Returns the lengths of what a source fetches at once, [files]; None if it fetches nothing, or too few files."""
    fetched = getattr(source, "fetched", None)
    lengths = None if fetched is None else fetched(split)
    return None if lengths is None or len(lengths) < FETCHED_MIN else lengths


class Ownership:
    """The owners of the blocks of one data set among the servers that are alive.

    It remembers the owners it has computed, since every range of a window asks for the same ones.
    """

    def __init__(self, dataset: str, servers: Iterable[str]) -> None:
        """`dataset` is its identity (`core.dataset_identity`), `servers` are the names of nodes, in any order.

        Raises:
            ConfigurationError: there is no server.
        """
        self.dataset = dataset
        self._owners: dict[int, str] = {}
        self.servers = tuple(sorted(set(servers)))
        if not self.servers:
            raise ConfigurationError("expected at least one data server to own blocks, found none: start one")

    def owner(self, block: int) -> str:
        """Returns the server that owns a block."""
        found = self._owners.get(block)
        if found is None:
            found = self._owners[block] = max(self.servers, key=lambda server: self._score(block, server))
        return found

    def part(self, blocks: Indices, server: str) -> Indices:
        """Returns where those of these examples are that a server owns, ascending.

        `blocks` [n] are the blocks of examples that follow one another in a pass (`block_order.Run`). The parts of all
        servers are disjoint, and together 0 .. n - 1: who asks each for its part writes each reply to its places.
        """
        distinct, places = np.unique(blocks, return_inverse=True)
        owned = np.array([self.owner(block) == server for block in distinct.tolist()], np.bool_)
        return np.flatnonzero(owned[places])

    def _score(self, block: int, server: str) -> Score:
        """The name settles a tie, so that all see the same owner."""
        return blake2b(f"{self.dataset}/{block}/{server}".encode(), digest_size=8).digest(), server
