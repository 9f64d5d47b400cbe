"""Why TLS connections fail, in words that say what to do; made of what OpenSSL reports. Pure.

Errors are told apart by whether another attempt can succeed: a certificate that has expired may be renewed meanwhile,
and whoever changes bytes on the way could as well have cut the line; a certificate of another authority stays wrong.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from adamctl.errors import AdamctlError, HandshakeError, ProofError, UnreachableError
from adamctl.net.tls.identity import Identity


class Ends(NamedTuple):
    """The ends of a connection, for messages.

    Attributes:
        own: this process's identity.
        peer: the other end's, None as long as its certificate is not verified.
        where: its address.
        folder: that of this process's certificate.
    """

    own: Identity
    peer: Identity | None
    where: str
    folder: str

    @property
    def other(self) -> str:
        return f"the process at {self.where}" if self.peer is None else f"{self.peer} at {self.where}"


_RENEW = "adamctl tls renew"
_CHANGED = "what arrived is not what was sent: it was changed on the way, or it is not TLS"

_OWN_VERDICTS = {
    9: ("its certificate is not yet valid", "check the clocks of both machines: adamctl tls show"),
    10: ("its certificate has expired", f"there: {_RENEW}"),
    18: ("its certificate is signed by itself", "there: adamctl tls create"),
    19: ("its certificate is of another authority", "give both ends certificates of one CA: adamctl tls check"),
    20: ("its certificate is of another authority", "give both ends certificates of one CA: adamctl tls check"),
    21: ("its certificate is of another authority", "give both ends certificates of one CA: adamctl tls check"),
    26: ("its certificate is not made for this", "there: adamctl tls create"),
}
"""OpenSSL's code of a certificate that we do not accept -> what is wrong with it, and what to do."""

_PEERS_VERDICTS = {
    "CERTIFICATE_EXPIRED": ("the certificate of this process has expired", _RENEW),
    "UNKNOWN_CA": (
        "the certificate of this process is of another authority",
        "give both ends certificates of one CA: adamctl tls check",
    ),
    "BAD_CERTIFICATE": (
        "the certificate of this process is not valid there, or not yet",
        "check the clocks of both machines: adamctl tls show",
    ),
    "CERTIFICATE_UNKNOWN": ("it does not accept the certificate of this process", "adamctl tls check"),
    "UNSUPPORTED_CERTIFICATE": ("the certificate of this process is not made for this", "adamctl tls create"),
    "CERTIFICATE_REQUIRED": ("it requires a certificate", "give --tls-dir DIR or set ADAMCTL_TLS"),
}
"""Name of the alert with which a peer ends a connection -> what it does not accept, and what to do."""

_RETRY_CAN_HELP = frozenset({9, 10, "CERTIFICATE_EXPIRED", "BAD_CERTIFICATE"})


def failure(error: ssl.SSLError, ends: Ends) -> AdamctlError:
    """Returns the typed error for a TLS connection that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        what, advice = _OWN_VERDICTS.get(code, (f"its certificate is refused: {error.verify_message}", "check it"))
        return _refused(code, f"{ends.own} refuses {ends.other}: {what}; {advice}")
    reason = str(error.reason or "")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ProofError(
            f"{ends.own} refuses {ends.other}: it has no certificate; there: give --tls-dir DIR or set ADAMCTL_TLS"
        )
    alert = reason.rpartition("ALERT_")[2] if "ALERT_" in reason else ""
    if alert in _PEERS_VERDICTS:
        what, advice = _PEERS_VERDICTS[alert]
        return _refused(alert, f"{ends.other} refuses {ends.own}: {what} ({ends.folder}); {advice}")
    if ("PROTOCOL" in reason and "VERSION" in reason) or reason == "UNSUPPORTED_PROTOCOL":
        return HandshakeError(f"{ends.own} and {ends.other} have no version of TLS in common; expected TLS 1.3")
    said = f"the other end says {alert.lower().replace('_', ' ')}" if alert else reason.lower().replace("_", " ")
    return UnreachableError(f"the connection of {ends.own} to {ends.other} was ended: {_CHANGED} ({said or error})")


def _refused(code: int | str, text: str) -> AdamctlError:
    return UnreachableError(text) if code in _RETRY_CAN_HELP else ProofError(text)


def answers_without_tls(ends: Ends) -> ProofError:
    """Returns the error of a client that has a certificate and met a port without TLS."""
    return ProofError(
        f"{ends.where} answers without TLS, and {ends.own} speaks only with it; start the process there with "
        "--tls-dir DIR or ADAMCTL_TLS, or leave both out here"
    )


def must_speak_tls(role: str, identity: Identity) -> str:
    """Returns what a port with TLS tells a peer that speaks without."""
    if role == "front":
        return (
            f"this front, {identity}, speaks only TLS; leave --insecure out, and at a loopback address give --tls; or "
            "start its run with --insecure, if the network is trusted"
        )
    return (
        f"this {role}, {identity}, speaks only TLS; give --tls-dir DIR or set ADAMCTL_TLS, a folder with ca.crt, "
        f"node.crt and node.key of cluster {identity.cluster}"
    )
