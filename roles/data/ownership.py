"""Which data server keeps which block of examples: rendezvous hashing (Thaler and Ravishankar 1998).

Every server has a score for every block, and the highest one owns it. So all who know the names of the servers agree
without a word. When a server goes, its blocks fall to the others, each to the next highest; when one comes, it takes
its share from all of them. No other block moves, and what servers keep in memory adds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import Indices

Score = tuple[bytes, str]


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

    def blocks_of(self, server: str, blocks: Iterable[int]) -> list[int]:
        """Returns those of `blocks` that a server owns, in the order given: what it reads ahead and keeps."""
        return [block for block in blocks if self.owner(block) == server]

    def parts(self, blocks: Indices) -> dict[str, Indices]:
        """Returns for each server that owns some of these examples where they are.

        `blocks` [n] are the blocks of examples that follow one another in a pass (`block_order.Run`). The parts are
        ascending, disjoint, and together 0 .. n - 1: who asks each owner for its part writes each reply to its places.
        """
        distinct, places = np.unique(blocks, return_inverse=True)
        ranks = {server: rank for rank, server in enumerate(self.servers)}
        owners = np.array([ranks[self.owner(int(block))] for block in distinct], np.int64)[places]
        return {self.servers[rank]: np.flatnonzero(owners == rank) for rank in np.unique(owners)}

    def _score(self, block: int, server: str) -> Score:
        """The name settles a tie, so that all see the same owner."""
        return blake2b(f"{self.dataset}/{block}/{server}".encode(), digest_size=8).digest(), server
