"""What a server answers about jobs that it does not know: not known yet, or unknown (pure)."""

from __future__ import annotations

from adamctl.roles.ps.core.instructions import Refuse
from adamctl.roles.ps.core.push import Token
from adamctl.wire.constants import ErrorCode

UNKNOWN_JOB_GRACE_S = 10.0
UNKNOWN_JOBS_MAX = 256
STARTING = "this server is still starting (the first one on a machine compiles its kernels)"


class UnknownJobs:
    """Remembers since when unknown jobs have been asked for; the oldest are forgotten first.

    Attributes:
        told: whether this server has received the cluster's jobs at all. A server that just started has not, and
            clients may connect before that.
    """

    def __init__(self) -> None:
        self.told = True
        self._since: dict[str, float] = {}

    def begin(self, told: bool) -> None:
        """Starts over."""
        self.told = told
        self._since.clear()

    def known(self, name: str) -> None:
        self._since.pop(name, None)

    def refuse(self, token: Token, name: str, now: float) -> Refuse:
        """Refuses a request for an unknown job; at first with NOT_READY, as the job may still become known."""
        if len(self._since) >= UNKNOWN_JOBS_MAX and name not in self._since:
            self._since.pop(next(iter(self._since)))
        since = self._since.setdefault(name, now)
        if not self.told:
            return Refuse(token, ErrorCode.NOT_READY, f"job {name!r} is not known here yet: {STARTING}")
        if now - since < UNKNOWN_JOB_GRACE_S:
            return Refuse(token, ErrorCode.NOT_READY, f"job {name!r} is not known here yet")
        return Refuse(token, ErrorCode.UNKNOWN_JOB, f"there is no job {name!r} here")
