"""What the core of a server needs to know of the copies that others have of its shards (pure)."""

from __future__ import annotations

from typing import Protocol

from adamctl.roles.ps.core.flush import Waiter


class BucketReplicas(Protocol):
    """The copies of a bucket that is served here.

    Attributes:
        awaits: pushes wait for copies at all.
        short: there are fewer copies in sync than acknowledgements need.
        gone: the bucket is served here no longer.
    """

    bucket: int
    awaits: bool
    short: bool
    gone: bool


class ShardReplicas(Protocol):
    """The copies of one shard of it.

    Attributes:
        founded: each copy that counts has on disk what the first push brought.
    """

    @property
    def group(self) -> BucketReplicas: ...

    @property
    def founded(self) -> bool: ...

    def wait(self, waiter: Waiter, counter: int) -> None:
        """Makes `waiter` wait until the copies have the state of a counter."""
