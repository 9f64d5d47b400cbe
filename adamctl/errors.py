"""Every error that adamctl raises on purpose, and the exit code each one ends a command with.

An error is either a bug in adamctl (raised as an ordinary Python exception) or one of these. A message says what was
expected, what was found and what to do. `code` travels on the wire (`adamctl.wire.constants.ErrorCode` gives the
numbers); `exit_code` follows the conventions of the command line: 1 the run failed, 2 usage or configuration,
3 unreachable or timed out, 4 degraded, 5 damaged data.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_INTERRUPTED = 130
"""Of a command that Ctrl-C has ended, as shells have it."""


class AdamctlError(Exception):
    """Base of all errors that end a command with a message and no traceback."""

    exit_code: ClassVar[int] = 1
    retry_helps: ClassVar[bool] = True
    """Whether a restart of the same process may succeed; if not, supervision does not restart it."""
    ends_run: ClassVar[bool] = False
    """Whether every worker of the run would fail in the same way, whichever meets it first."""


class RunFailedError(AdamctlError):
    """A training run ended without a result; the message gives the first cause."""


class MembershipLostError(RunFailedError):
    """This process is no longer a member of its cluster: it was silent for too long, or another one took its name."""


class ConfigurationError(AdamctlError):
    """A flag, an environment variable or a line of an experiment is wrong; retrying cannot help."""

    exit_code = 2
    retry_helps = False


class CustomError(AdamctlError):
    """A layer or loss of the user's own failed, or did what it must not; the message names it and the method."""

    retry_helps = False
    ends_run = True


class ProgramError(ConfigurationError):
    """A batch algorithm asks for what cannot be, such as a vector that it has not declared. Nothing was changed."""


class UnreachableError(AdamctlError):
    """A peer did not answer, or answered too late."""

    exit_code = 3


class NoAddressError(UnreachableError):
    """A peer has told no address that can be used from here, e.g. only a Unix socket of another machine."""


class MisfitError(AdamctlError):
    """Processes of one run do not fit each other: they have other versions or plans, or cannot reach each other."""

    exit_code = 3
    retry_helps = False


class DeadlineError(UnreachableError):
    """A request's deadline passed before its reply came."""


class DamagedDataError(AdamctlError):
    """A file or a stored record does not match its checksum, length or format."""

    exit_code = 5
    retry_helps = False


class ChangedDataError(DamagedDataError):
    """A file is not the one that was opened, or the system cannot read it: no example of it is to blame for that."""


class NotFiniteError(AdamctlError):
    """An update holds NaN or infinite values; it is not applied."""


class ProtocolError(AdamctlError):
    """The peer broke the wire format; the connection is closed. The peer is at fault; retrying cannot help."""

    exit_code = 3


class HandshakeError(ProtocolError):
    """The peer refused our HELLO, or we refused the peer's: wrong version, token or role."""

    exit_code = 2
    retry_helps = False


class ProofError(HandshakeError):
    """One side refused the token or the certificate by which the other proved who it is, or there was none."""


class WrongClusterError(HandshakeError):
    """The two sides belong to different clusters: an address now leads to another cluster."""


class BackpressureError(AdamctlError):
    """A bounded queue or credit limit is full and the caller asked not to wait."""

    exit_code = 3


class RemoteError(AdamctlError):
    """The peer answered a request with an error; the connection stays open.

    Attributes:
        code: a member of `adamctl.wire.constants.ErrorCode`, as its integer.
        details: what the peer added for programs (for example the new routing), as plain JSON-like values.
    """

    def __init__(self, code: int, message: str, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or {}
