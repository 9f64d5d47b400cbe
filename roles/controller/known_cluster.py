"""Which cluster a client has read from, so that it believes no controller of another one. Pure.

While all controllers of a cluster are lost, new ones may stand at their addresses, still empty: until a backup is
restored onto them they are another cluster, in which no job exists. Whoever asks them must not take that for an answer.
A member knows its cluster from its registration; a client that is no member knows it from what it reads.
"""

from __future__ import annotations

from msgspec.structs import replace

from adamctl.config.records import LEAP
from adamctl.wire.messages import ConfigCompareAndSetReply, ConfigReadReply, ConfigWatchReply, Hello, Message

_NOTHING = -1
_WITH_REVISION = ConfigReadReply | ConfigCompareAndSetReply | ConfigWatchReply


class KnownCluster:
    """What one client knows. It has one connection at a time.

    Attributes:
        identity: the cluster that its answers were of, as HELLO carries it; empty while there is none.
    """

    def __init__(self) -> None:
        self.identity = ""
        self._greeted = ""
        self._revision = _NOTHING

    def named_in(self, hello: Hello) -> Hello:
        """Returns the identity to connect with: it names this cluster, unless it names one already."""
        return hello if hello.cluster or not self.identity else replace(hello, cluster=self.identity)

    def connected(self, identity: str) -> None:
        """Notes a new connection, to a controller that has named this cluster; empty: it has named none."""
        self._greeted, self._revision = identity, _NOTHING

    def answered(self, message: Message) -> bool:
        """Notes an answer over the last connection and returns whether to keep the connection.

        A cluster in which nothing was ever changed, at revision 0, is not noted: a backup may be restored onto it. If
        one was restored under this connection, what the controller named in HELLO is no longer its cluster: another
        connection will tell.
        """
        if not isinstance(message, _WITH_REVISION):
            return True
        revision = message.revision
        before, self._revision = self._revision, revision
        if before != _NOTHING and revision >= before + LEAP:
            self.forget()
            return False
        if revision > 0 and self._greeted:
            self.identity = self._greeted
        return True

    def forget(self) -> None:
        """Forgets the cluster, as before its controllers become another one."""
        self.identity = self._greeted = ""
