"""Requests to etcd's gateway: gRPC messages as JSON over HTTP, to one member at a time.

Keys and values are sent in base64, 64-bit numbers as decimal strings, and false and 0 are left out. The gateway is part
of the etcd server and listens on its client addresses (https://etcd.io/docs/latest/dev-guide/api_grpc_gateway).
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from adamctl.errors import AdamctlError, ConfigurationError, DeadlineError, RemoteError, UnreachableError
from adamctl.net.tls.credentials import check_private, stamp_of
from adamctl.roles.configuration import SILENCE_S, Waiting
from adamctl.roles.controller.etcd.url import PASSWORD_VARIABLE, USER_VARIABLE, EtcdUrl
from adamctl.wire.constants import ErrorCode
from adamctl.wire.unreadable import UNREADABLE

if TYPE_CHECKING:
    import aiohttp

Json: TypeAlias = dict[str, Any]

INVALID_ARGUMENT = 3
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
OUT_OF_RANGE = 11
UNAUTHENTICATED = 16
"""The gRPC status codes that matter here."""
_AGAIN = frozenset({1, 4, 10, 13, 14})
"""Cancelled, deadline, aborted, internal, unavailable: no leader, or a member that stops. May have been done."""
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 0.5
_BODY_BYTES_MAX = 128 << 20
_NO_ANSWER = "no answer"


class EtcdError(RemoteError):
    """etcd refused a request and did not carry it out. `status` is the gRPC status."""

    def __init__(self, status: int, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(int(code), message)
        self.status = status


class _AskAgainError(UnreachableError):
    """One attempt failed and another may succeed. `sent`: the request may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Attempts:
    """What is known about one request that is repeated until it is answered.

    Attributes:
        unanswered: how many attempts may have been carried out without an answer.
        problem: the last error.
    """

    def __init__(self) -> None:
        self.unanswered = 0
        self.problem = _NO_ANSWER


class Gateway:
    """Posts requests to the members of an etcd cluster; goes on to the next one when a member does not answer."""

    def __init__(self, url: EtcdUrl, *, attempt_s: float, log: logging.Logger) -> None:
        """`attempt_s`: how long to wait for a member's answer before trying the next one."""
        self.url = url
        self.attempt_s = attempt_s
        self._log = log
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None
        self._stamp: object = None  # of the client certificate's files
        self._member = 0
        self._login = ""  # the token that a log-in gave
        self._logging_in = asyncio.Lock()

    async def close(self) -> None:
        """Closes all connections. The gateway can be used again afterwards."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self, path: str, message: Json, deadline_s: float, attempts: Attempts | None = None, *, stream: bool = False
    ) -> Json:
        """Posts a message until it is answered and returns the answer.

        Args:
            path: such as `kv/range`.
            attempts: is kept up to date even when this raises; needed for a request that must not be done twice.
            stream: the answer is the first one of a stream.

        Raises:
            EtcdError: etcd refuses; this attempt was not carried out.
            UnreachableError: no member answered in time.
        """
        loop = asyncio.get_running_loop()
        attempts = attempts or Attempts()
        until_s = loop.time() + deadline_s
        pause_s = _RETRY_FIRST_S
        logins = 0
        with Waiting(f"etcd at {self.url.text}", patience_s=SILENCE_S, log=self._log):
            while True:
                remaining_s = until_s - loop.time()
                if remaining_s <= 0:
                    raise UnreachableError(
                        f"etcd at {self.url.text} did not answer within {deadline_s:.2g} s ({attempts.problem}); "
                        "is it running, and is this its address?"
                    )
                try:
                    return await self._attempt(path, message, min(self.attempt_s, remaining_s), stream)
                except _AskAgainError as error:
                    if remaining_s >= self.attempt_s or attempts.problem == _NO_ANSWER:  # a shortened attempt says less
                        attempts.problem = str(error)
                    attempts.unanswered += error.sent
                    self._member += 1
                except EtcdError as error:
                    if not self._forget_login(error) or logins:
                        raise
                    logins += 1
                    continue
                await asyncio.sleep(max(0.0, min(pause_s, until_s - loop.time())))
                pause_s = min(2 * pause_s, _RETRY_MAX_S)

    @asynccontextmanager
    async def stream(self, path: str, message: Json) -> AsyncIterator[AsyncIterator[Json]]:
        """Posts a message to one member and yields its answers one by one, until the block ends.

        Raises:
            EtcdError: etcd refuses.
            UnreachableError: the member went away; the next call uses the next one.
        """
        try:
            async with self._post(path, message, None) as response:
                yield self._results(response)
        except _AskAgainError:
            self._member += 1
            raise
        except EtcdError as error:
            self._forget_login(error)
            raise

    def forget_login(self) -> None:
        """Logs in again with the next request, where etcd requires users."""
        self._login = ""

    def skip_member(self) -> None:
        """Asks the next member from now on."""
        self._member += 1

    async def ask(self, member: str, path: str, message: Json, deadline_s: float) -> Json:
        """Asks the given member, once. Raises UnreachableError, EtcdError."""
        try:
            async with asyncio.timeout(deadline_s), self._post(path, message, member) as response:
                return _decode(await response.content.read())
        except TimeoutError:
            raise DeadlineError(f"{member} did not answer within {deadline_s:.2g} s") from None

    # --- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self, path: str, message: Json, deadline_s: float, stream: bool) -> Json:
        try:
            async with asyncio.timeout(deadline_s), self._post(path, message, None) as response:
                if stream:
                    async for result in self._results(response):
                        return result
                    raise _AskAgainError(f"{self._where()} ended its answer early", sent=True)
                return _decode(await response.content.read())
        except TimeoutError:
            raise _AskAgainError(f"{self._where()} did not answer within {deadline_s:.2g} s", sent=True) from None

    @asynccontextmanager
    async def _post(self, path: str, message: Json, member: str | None) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        where = member or self._where()
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self.url.user and path != "auth/authenticate":
            headers["Authorization"] = await self._logged_in()
        try:
            async with self._opened().post(
                f"{where}/v3/{path}", data=msgspec.json.encode(message), headers=headers
            ) as response:
                if response.status != 200:
                    raise self._refused(await response.content.read(), response.status, where)
                yield response
        except aiohttp.ClientConnectorError as error:
            if isinstance(error, aiohttp.ClientSSLError):
                raise ConfigurationError(f"{where} and this process do not agree about TLS: {error}") from error
            number = error.os_error.errno  # negative if a name was not found; loops word the other errors differently
            text = os.strerror(number) if number and number > 0 else error.os_error.strerror or str(error)
            raise _AskAgainError(f"{where}: {text}", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _AskAgainError(f"{where}: {error or type(error).__name__}", sent=True) from error

    async def _results(self, response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
        rest = b""
        while chunk := await response.content.readany():
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            if len(rest) > _BODY_BYTES_MAX:
                raise UnreachableError(f"{self._where()} sends an answer without an end")
            for line in filter(None, lines):
                answer = _decode(line)
                if "error" in answer:
                    raise self._refused(line, 200, self._where())
                yield answer["result"]

    def _refused(self, body: bytes, status: int, where: str) -> AdamctlError:
        """Returns the error that an unexpected answer means: an EtcdError, or a more specific one."""
        try:
            answer = _decode(body)
        except UnreachableError:
            text = body[:200].decode(errors="replace").strip()
            return _AskAgainError(f"{where} answered {status}: {text}; is it an etcd server?", sent=True)
        inner = answer.get("error")
        details: Json = inner if isinstance(inner, dict) else answer
        code = int(details.get("grpc_code") or details.get("code") or 2)
        text = str(details.get("message") or inner or f"HTTP status {status}")
        if code in _AGAIN or "too many requests" in text or "leader changed" in text:
            return _AskAgainError(f"{where}: {text}", sent=True)
        if "user name is empty" in text:
            return ConfigurationError(f"{where} requires a user; set {USER_VARIABLE} and {PASSWORD_VARIABLE}")
        if code == PERMISSION_DENIED:
            return ConfigurationError(
                f"{where}: {text}: the user {self.url.user!r} may not use keys that begin with {self.url.root!r}; "
                f"etcdctl role grant-permission --prefix=true ROLE readwrite {self.url.root}"
            )
        return EtcdError(code, f"{where}: {text}")

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # This class tries the members in turn itself; proxy settings of the environment are not meant for them.
            self._context = self._tls() if self._where().startswith("https") else None
            connector = aiohttp.TCPConnector(limit=0, ssl=self._context or True)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.attempt_s)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        else:
            self._renew()
        return self._session

    def _tls(self) -> ssl.SSLContext:
        """Raises ConfigurationError: the certificates cannot be used, or others may read the key."""
        url = self.url
        try:
            context = ssl.create_default_context(cafile=url.authority or None)
            if url.certificate:
                check_private(Path(url.key or url.certificate))
                self._stamp = stamp_of(self._files)
                context.load_cert_chain(url.certificate, url.key or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"cannot use the certificates for {url.text}: {error}") from error
        return context

    @property
    def _files(self) -> tuple[Path, ...]:
        return tuple(Path(file) for file in (self.url.certificate, self.url.key) if file)

    def _renew(self) -> None:
        """Makes new connections with a client certificate that has changed; the old one stays if it cannot be used."""
        if self._context is None or not self.url.certificate or stamp_of(self._files) == self._stamp:
            return
        self._stamp = stamp_of(self._files)
        try:
            check_private(Path(self.url.key or self.url.certificate))
            self._context.load_cert_chain(self.url.certificate, self.url.key or None)
        except (ConfigurationError, OSError, ssl.SSLError) as error:
            self._log.error("the certificate for %s stays as it was: %s", self.url.text, error)

    def _where(self) -> str:
        return self.url.members[self._member % len(self.url.members)]

    # --- log-in ---------------------------------------------------------------------------------------------------

    async def _logged_in(self) -> str:
        """Returns the token that etcd gives a user; etcd forgets a token that is not used for a while."""
        async with self._logging_in:
            if not self._login:
                message = {"name": self.url.user, "password": self.url.password}
                try:
                    async with self._post("auth/authenticate", message, None) as response:
                        self._login = str(_decode(await response.content.read()).get("token", ""))
                except EtcdError as error:
                    raise ConfigurationError(
                        f"{error}; {USER_VARIABLE} and {PASSWORD_VARIABLE} must name a user of etcd"
                    ) from error
            return self._login

    def _forget_login(self, error: EtcdError) -> bool:
        """Forgets the token if an error says that it is no longer valid; returns whether to log in again."""
        if not self._login or not (error.status == UNAUTHENTICATED or "invalid auth token" in str(error)):
            return False
        self._login = ""
        return True


def encoded(text: str | bytes) -> str:
    """Returns a key or value as it is sent."""
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def decoded(text: str) -> bytes:
    return b64decode(text)


def number(message: Json, name: str) -> int:
    """Returns a 64-bit number of a message, which leaves 0 out."""
    return int(message.get(name, 0))


def revision_of(reply: Json) -> int:
    return number(reply["header"], "revision")


def _decode(body: bytes) -> Json:
    try:
        found: Json = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE as error:
        raise UnreachableError(f"not an answer of etcd: {error}") from error
    return found
