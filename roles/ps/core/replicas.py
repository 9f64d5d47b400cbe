"""What a server's core needs to know about other servers' copies of its shards (pure)."""

from __future__ import annotations

from typing import Protocol

from adamctl.roles.ps.core.flush import Waiter


class BucketReplicas(Protocol):
    """The copies of a bucket that is served here.

    Attributes:
        awaits: whether pushes wait for copies.
        short: fewer copies are in sync than acknowledgements need.
        gone: the bucket is no longer served here.
    """

    bucket: int
    awaits: bool
    short: bool
    gone: bool


class ShardReplicas(Protocol):
    """The copies of one shard of a bucket.

    Attributes:
        founded: every in-sync copy has the initial values of the first push on disk.
    """

    @property
    def group(self) -> BucketReplicas: ...

    @property
    def founded(self) -> bool: ...

    def wait(self, waiter: Waiter, counter: int) -> None:
        """Makes `waiter` wait until the copies have the state with this counter."""
