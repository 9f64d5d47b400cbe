"""The client that speaks to controllers, and the choice between it and the one that speaks to etcd."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from adamctl.errors import (
    ConfigurationError,
    DeadlineError,
    ProtocolError,
    RemoteError,
    UnreachableError,
    WrongClusterError,
)
from adamctl.net.transport import Body, Connection, Transport
from adamctl.roles.configuration import SILENCE_S, Waiting
from adamctl.roles.controller.etcd.url import is_etcd
from adamctl.roles.controller.known_addresses import KnownAddresses, given
from adamctl.roles.controller.known_cluster import KnownCluster
from adamctl.wire.changes import Changes
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigCompareAndSetRequest,
    ConfigEntry,
    ConfigReadReply,
    ConfigReadRequest,
    ConfigWatchReply,
    ConfigWatchRequest,
    ControllerBackupReply,
    ControllerBackupRequest,
    ControllerReplaceRequest,
    ControllerRestoreReply,
    ControllerRestoreRequest,
    Empty,
    Hello,
    Message,
    NodeBeaconReply,
    NodeBeaconRequest,
    NodeLeaveRequest,
    NodeRegisterReply,
    NodeRegisterRequest,
    StatusReply,
    StatusRequest,
)
from adamctl.wire.unreadable import UNREADABLE

if TYPE_CHECKING:
    from adamctl.roles.controller.etcd.client import EtcdClient

ReplyT = TypeVar("ReplyT", bound=Message)
_ENTRIES = msgspec.msgpack.Decoder(list[ConfigEntry])
_RETRY_FIRST_S, _RETRY_MAX_S = 0.05, 1.0
_ELECTION_RETRY_MAX_S = 0.2
"""The longest pause between attempts while controllers answer but there is no leader."""
_REDIRECTS_MAX = 3
"""Redirections followed in a row without a pause; after that, wait until the controllers agree on a leader."""
WHOLE_S = 30.0
"""How much longer an answer may take that has all of the configuration in it, or in its request."""
_AGAIN = (ErrorCode.DEADLINE_PASSED, ErrorCode.SHUTTING_DOWN, ErrorCode.NOT_READY, ErrorCode.NOT_LEADER)


class ControllerClient:
    """`ConfigurationStore` and `Membership` over the network.

    Keeps one connection and replaces it when it is lost, trying the addresses in turn. It goes to the leader when a
    controller names one, and sends a request again until it is answered or its deadline has passed. Everything it sends
    is safe to send twice: a compare-and-set carries a session and a sequence number, which the controllers remember.
    Once it has read from a cluster, it waits for controllers of that one and believes no other (`KnownCluster`). Once
    one has answered, it goes on to the next when another refuses its token or certificate, or has a wrong one.
    """

    notices_ends = True
    """The controllers themselves notice that a member has ended."""

    def __init__(
        self,
        transport: Transport,
        addresses: Sequence[str] | KnownAddresses,
        hello: Callable[[], Hello],
        *,
        deadline_s: float = 30.0,
        attempt_s: float = 1.0,
        watch_s: float = 5.0,
        session: str | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        """
        Args:
            addresses: of the controllers, at least one; several clients of a process may share what is known.
            hello: gives the identity to connect with.
            deadline_s: of every call that is not given one.
            attempt_s: after this long without an answer the connection counts as dead, and another controller is tried;
                from the second time on, after twice as long.
            watch_s: longer watches are asked for in pieces of this length, so that a silent end is noticed.
            session: a name that no other client ever uses; random if left out.
        """
        if not given(addresses):
            raise ConfigurationError("no controller's address is known; give --controller or ADAMCTL_CONTROLLER")
        self.known = addresses if isinstance(addresses, KnownAddresses) else KnownAddresses(addresses)
        self.deadline_s = deadline_s
        self.attempt_s = attempt_s
        self.watch_s = watch_s
        self._transport = transport
        self._hello = hello
        self._log = log or logging.getLogger("adamctl.controller.client")
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._cluster = KnownCluster()
        self._next_address = 0
        self._leader = ""  # address of the controller that another one said leads; tried once
        self._address = ""  # of the connection
        self._silent, self._silent_until_s = "", 0.0  # an address that gave no answer, and how long to avoid it
        self._changing = asyncio.Lock()  # one compare-and-set at a time, so that sequence numbers arrive in order
        self._session = session or secrets.token_hex(12)
        self._session_known = False  # whether the controllers have remembered a request of this session
        self._sessions_used = 0
        self._sequence = 0
        self._known_serial = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the controllers are, as far as is known now."""
        return self.known.now

    # --- ConfigurationStore -----------------------------------------------------------------------------------------

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        reply, entries = await self._call(ConfigReadRequest(prefix), ConfigReadReply)
        return reply.revision, entries

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        body = (msgspec.msgpack.encode(changes),)
        async with self._changing:
            for _ in range(2):
                if self._sequence and not self._session_known:
                    self._begin_session()
                self._sequence += 1
                request = ConfigCompareAndSetRequest(self._session, self._sequence, self._known_serial)
                attempts = _Attempts()
                try:
                    reply, _ = await self._call(request, ConfigCompareAndSetReply, body, attempts=attempts)
                    self._session_known = True
                    return reply
                except RemoteError as error:
                    # Refused at the first attempt, it was never applied: the controllers have forgotten our session.
                    if error.code != ErrorCode.CLIENT_EVICTED or attempts.made > 1:
                        raise
                    self._session_known = False
                    serial = error.details.get("serial", 0)
                    self._known_serial = serial if isinstance(serial, int) else 0
        raise RemoteError(ErrorCode.CLIENT_EVICTED, "the controllers forget our session as soon as it begins")

    def _begin_session(self) -> None:
        """Begins a new session. Only until one is remembered: after that, an unknown session means a forgotten one."""
        self._sessions_used += 1
        self._session = f"{self._session.partition('+')[0]}+{self._sessions_used}"
        self._sequence = 0

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            asked_s = min(max(until_s - loop.time(), 0.0), self.watch_s)
            request = ConfigWatchRequest(prefix, after_revision, asked_s)
            reply, entries = await self._call(request, ConfigWatchReply, wait_s=asked_s)
            if entries or reply.deleted or reply.reset or loop.time() >= until_s:
                return Changes(reply.revision, tuple(entries), reply.deleted, reply.reset)
            after_revision = reply.revision

    # --- Membership -------------------------------------------------------------------------------------------------

    async def register(self, request: NodeRegisterRequest, *, deadline_s: float | None = None) -> NodeRegisterReply:
        try:
            reply, _ = await self._call(request, NodeRegisterReply, deadline_s=deadline_s)
        except RemoteError as error:
            if error.code == ErrorCode.BAD_CONFIGURATION:
                raise ConfigurationError(str(error)) from error
            raise
        return reply

    async def beacon(self, node: str, incarnation: int, *, deadline_s: float | None = None) -> None:
        reply, _ = await self._call(NodeBeaconRequest(node, incarnation), NodeBeaconReply, deadline_s=deadline_s)
        self.known.learn(reply.controllers)

    async def leave(self, node: str, incarnation: int, *, why: str = "", deadline_s: float | None = None) -> None:
        await self._call(NodeLeaveRequest(node, incarnation, why), Empty, deadline_s=deadline_s)

    # --- the controllers themselves -----------------------------------------------------------------------------------

    async def replace_controller(self, old: str, name: str, address: str) -> None:
        """Replaces a lost controller by one that was started with an empty folder.

        Raises:
            RemoteError: BAD_CONFIGURATION: there is no such controller, or the new one has not introduced itself yet.
        """
        members = [member for member in await self._members() if member.get("name") == old]
        identity = members[0].get("identity", 0) if members else 0
        await self._call(ControllerReplaceRequest(old, name, address, identity), Empty)

    async def members(self) -> dict[str, str]:
        """Returns the controllers, name -> address."""
        return {str(member.get("name")): str(member.get("address")) for member in await self._members()}

    async def _members(self) -> list[dict[str, Any]]:
        await self.read("/nodes/")  # so that the connection is to the leader, who knows what was decided
        reply, _ = await self._call(StatusRequest(), StatusReply)
        return [member for member in reply.status.get("members", ()) if isinstance(member, dict)]

    async def backup(self) -> bytes:
        """Returns the configuration as it is now, as `adamctl.roles.controller.core.service.backup` encodes it."""
        _, entries = await self._call(ControllerBackupRequest(), ControllerBackupReply, wait_s=WHOLE_S)
        if len(entries) != 1:
            raise ProtocolError(f"the controller at {self._where()} sent {len(entries)} backups; expected one")
        return entries[0].value

    async def restore(self, backup: bytes) -> ControllerRestoreReply:
        """Puts a backup in the place of everything that the controllers keep. The same bytes are safe to send twice.

        Raises:
            RemoteError: BAD_CONFIGURATION: these controllers have been in use; BAD_MESSAGE: it is no backup.
        """
        self._cluster.forget()
        reply, _ = await self._call(ControllerRestoreRequest(), ControllerRestoreReply, (backup,), wait_s=WHOLE_S)
        await self.close()  # its HELLO named the cluster that these controllers no longer are
        return reply

    # --- the connection ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the connection. The client can be used again afterwards."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _call(
        self,
        message: Message,
        kind: type[ReplyT],
        body: Body = (),
        *,
        deadline_s: float | None = None,
        wait_s: float = 0.0,
        attempts: _Attempts | None = None,
    ) -> tuple[ReplyT, list[ConfigEntry]]:
        """Sends a request until it is answered; `wait_s` is how long the controller may keep it on purpose."""
        loop = asyncio.get_running_loop()
        attempts = attempts or _Attempts()
        allowed_s = (self.deadline_s if deadline_s is None else deadline_s) + wait_s
        until_s = loop.time() + allowed_s
        pause_s, pause_s_max = _RETRY_FIRST_S, _RETRY_MAX_S
        redirects, attempt_s = 0, self.attempt_s
        with Waiting(f"the controller at {self._where()}", patience_s=SILENCE_S + wait_s, log=self._log):
            while True:
                remaining_s = until_s - loop.time()
                if remaining_s <= 0:
                    raise UnreachableError(
                        f"the controller at {self._where()} did not answer within {allowed_s:g} s "
                        f"({attempts.problem}); is it running, and is --controller its address?"
                    )
                try:
                    return await self._attempt(message, kind, body, min(attempt_s + wait_s, remaining_s), attempts)
                except UnreachableError as error:
                    attempts.problem = str(error)
                    attempt_s = 2 * self.attempt_s
                except RemoteError as error:
                    if error.code not in _AGAIN:
                        raise
                    attempts.problem = str(error)
                    if error.code == ErrorCode.NOT_LEADER:
                        await self._redirect(error, attempts.connection)
                        redirects += 1
                        pause_s_max = _ELECTION_RETRY_MAX_S
                        if self._leader and redirects <= _REDIRECTS_MAX:
                            continue
                await asyncio.sleep(max(0.0, min(pause_s, until_s - loop.time())))
                pause_s = min(2 * pause_s, pause_s_max)

    async def _attempt(
        self, message: Message, kind: type[ReplyT], body: Body, deadline_s: float, attempts: _Attempts
    ) -> tuple[ReplyT, list[ConfigEntry]]:
        connection = await self._connected(deadline_s)
        attempts.made += 1
        attempts.connection = connection
        try:
            reply = await connection.request(message, body, deadline_s=deadline_s)
        except DeadlineError:
            self._avoid(self._address)
            await self._drop(connection)
            raise
        entries: list[ConfigEntry] = []
        if len(reply.body):
            try:
                entries = _ENTRIES.decode(reply.body)
            except UNREADABLE as error:
                raise ProtocolError(f"{connection.peer_name} sent a malformed list of entries: {error}") from error
            finally:
                reply.release()
        self.known.answered = True
        if not isinstance(reply.message, kind):
            raise ProtocolError(f"the controller at {connection.peer_name} answered {type(reply.message).__name__}")
        if connection is self._connection and not self._cluster.answered(reply.message):
            await self._drop(connection)
        return reply.message, entries

    async def _connected(self, deadline_s: float) -> Connection:
        async with self._connecting:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            self._address = address = self._choose_address()
            hello = self._cluster.named_in(self._hello())
            try:
                self._connection = await self._transport.connect(
                    address, hello, deadline_s=deadline_s, expects=("controller", "")
                )
            except (UnreachableError, ProtocolError) as error:  # others may have the address of a lost controller now
                if not (self.known.answered or isinstance(error, UnreachableError | WrongClusterError)):
                    raise  # the token, or the like, that this process was started with
                if isinstance(error, DeadlineError):
                    self._avoid(address)
                self._next_address += 1
                raise error if isinstance(error, UnreachableError) else UnreachableError(str(error)) from error
            connection, peer = self._connection, self._connection.peer
            if peer.role != "controller":
                await self._drop(connection)
                text = f"expected a controller at {address}, found {peer.role} {peer.node}"
                if self.known.answered:
                    raise UnreachableError(text)
                raise ConfigurationError(f"{text}; give --controller its address")
            self._cluster.connected(peer.cluster)
            return connection

    def _choose_address(self) -> str:
        """Returns where to connect next: the named leader or the next address, but not one that was just silent."""
        leader, self._leader = self._leader, ""
        avoided = self._silent if asyncio.get_running_loop().time() < self._silent_until_s else ""
        if leader and leader != avoided:
            return leader
        addresses = self.addresses
        if addresses[self._next_address % len(addresses)] == avoided:
            self._next_address += 1
        return addresses[self._next_address % len(addresses)]

    def _avoid(self, address: str) -> None:
        """Avoids a silent controller for a while: the others may name it as leader until they elect another."""
        self._silent = address
        self._silent_until_s = asyncio.get_running_loop().time() + 2 * self.attempt_s

    async def _redirect(self, error: RemoteError, connection: Connection | None) -> None:
        """Leaves a controller that does not lead, for the one that it names or for the next one."""
        if connection is not None and self._connection is connection:
            self._leader = str(error.details.get("leader", ""))
            await self._drop(connection)

    async def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._next_address += 1
        await connection.close()

    def _where(self) -> str:
        return ", ".join(self.addresses)


def cluster_client(
    transport: Transport,
    addresses: Sequence[str] | KnownAddresses,
    hello: Callable[[], Hello],
    *,
    deadline_s: float = 30.0,
    attempt_s: float = 1.0,
    log: logging.Logger | None = None,
) -> ControllerClient | EtcdClient:
    """Returns a client of the configuration service: controllers at their addresses, or etcd at its one URL.

    Raises:
        ConfigurationError: there is no address, an etcd URL is malformed, or what etcd needs is not installed.
    """
    first = next(iter(given(addresses)), "")
    if is_etcd(first):
        from adamctl.roles.controller.etcd.client import EtcdClient

        return EtcdClient(first, deadline_s=deadline_s, attempt_s=attempt_s, log=log)
    return ControllerClient(transport, addresses, hello, deadline_s=deadline_s, attempt_s=attempt_s, log=log)


class _Attempts:
    """How often one request was sent, the connection it used last, and the last error."""

    def __init__(self) -> None:
        self.made = 0
        self.connection: Connection | None = None
        self.problem = "no connection"
