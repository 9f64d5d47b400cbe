"""Maps the exception that a handler raised to an error code; the same for every transport."""

from __future__ import annotations

import logging

from adamctl.errors import (
    AdamctlError,
    BackpressureError,
    ConfigurationError,
    DamagedDataError,
    DeadlineError,
    ProtocolError,
    RemoteError,
)
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode

_LOG = logging.getLogger(__name__)

_WHERE = "the log of the process that answers says why"

_CODES: tuple[tuple[type[AdamctlError], ErrorCode], ...] = (
    (ConfigurationError, ErrorCode.BAD_CONFIGURATION),
    (DamagedDataError, ErrorCode.DAMAGED_DATA),
    (BackpressureError, ErrorCode.OVER_QUOTA),
    (DeadlineError, ErrorCode.DEADLINE_PASSED),
    (ProtocolError, ErrorCode.BAD_MESSAGE),
)


def report_failure(request: Request, error: Exception) -> None:
    """Answers a request with its handler's exception: `RemoteError` unchanged, ours by kind, others as INTERNAL."""
    if isinstance(error, RemoteError):
        request.fail(error.code, str(error), error.details)
        return
    for kind, code in _CODES:
        if isinstance(error, kind):
            request.fail(code, str(error))
            return
    name = type(request.message).__name__
    _LOG.error("the handler of %s from %s failed", name, request.peer_name, exc_info=error)
    # An unforeseen error may say what files there are here: only the log has its text.
    request.fail(ErrorCode.INTERNAL, f"{name} failed: {type(error).__name__}; {_WHERE}")
