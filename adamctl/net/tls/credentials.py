"""A folder with `ca.crt`, `node.crt` and `node.key`: written, read, checked, and read again when its files change.

The check is the one that others will make: a handshake in memory, of the certificate with itself. It also gives what
the certificate says, so that only making certificates needs another package.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adamctl.errors import AdamctlError, ConfigurationError
from adamctl.net.address import TLS_VARIABLE
from adamctl.net.tls.engine import TlsEngine
from adamctl.net.tls.expiry import Lifetime
from adamctl.net.tls.identity import Identity, certificate_identity
from adamctl.net.tls.refusals import Ends, failure
from adamctl.roles.private_folder import PRIVATE, make_private

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "node.crt", "node.key"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LOOK_AGAIN_S = 1.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """One state of a folder.

    Attributes:
        identity: what its certificate says.
        lifetime: of its certificate.
        server, client: contexts for connections that are accepted, and for those that are made.
        authorities: the certificates (DER) of those that it trusts.
        folder: for messages.
    """

    identity: Identity
    lifetime: Lifetime
    server: ssl.SSLContext
    client: ssl.SSLContext
    authorities: frozenset[bytes]
    folder: str


class Credentials:
    """A process's certificate. `current` is the state for the next connection; may be used from several threads.

    Args:
        folder: holds the three files.
        clock: seconds since 1970.

    Raises:
        ConfigurationError: a file is missing, others may read the key, or the certificate is not valid.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.clock = clock
        self._stamp = _stamp(folder)
        self._loaded = load(folder)
        self._looked_s = clock()
        self._failed: object = None  # the files that could not be used when they were last looked at
        self._told: object = None  # those of which the log has said so

    @property
    def current(self) -> Loaded:
        """The newest state that is valid. Looks for changed files, at most once a second."""
        if abs(self.clock() - self._looked_s) >= _LOOK_AGAIN_S:
            self.look()
        return self._loaded

    def look(self, *, anew: bool = False) -> bool:
        """Reads the files again if they have changed, or `anew` in any case; returns whether there is a new state.

        If they are not valid, the old state stays, and they are tried again: they may become valid. The log says why
        when they are found so for the second time: the first time they may just be written.
        """
        self._looked_s = self.clock()
        stamp = _stamp(self.folder)
        if stamp == self._stamp and not anew:
            return False
        try:
            loaded = load(self.folder)
            if loaded.identity != self._loaded.identity:
                raise ConfigurationError(
                    f"{self.folder}: expected a certificate for {self._loaded.identity}, as before; "
                    f"found {loaded.identity}; restart the process to give it another identity"
                )
        except AdamctlError as error:
            if anew or (self._failed == stamp and self._told != stamp):
                self._told = stamp
                _LOG.error("the certificate stays as it was: %s", error)
            self._failed = stamp
            return False
        self._stamp, self._failed, self._told, self._loaded = stamp, None, None, loaded
        _LOG.info("%s: a certificate for %s was read again", self.folder, loaded.identity)
        return True


FROM_ENVIRONMENT = "the folder in ADAMCTL_TLS"


def chosen_credentials(tls: Credentials | str | None, environment: Mapping[str, str]) -> Credentials | None:
    """Returns `tls`, or, if it is FROM_ENVIRONMENT, what `environment_credentials` does."""
    return environment_credentials(environment) if isinstance(tls, str) else tls


def environment_credentials(environment: Mapping[str, str]) -> Credentials | None:
    """Returns the certificate in the folder that ADAMCTL_TLS names; None if it is not set. Raises as `Credentials`."""
    folder = environment.get(TLS_VARIABLE, "")
    return Credentials(Path(folder)) if folder else None


def load(folder: Path) -> Loaded:
    """Reads a folder and checks it.

    Raises:
        ConfigurationError: a file is missing or damaged, others may read the key, the key is not the certificate's, or
            the authority has not issued it, or it is not valid now, or it names no identity.
    """
    authority, certificate, key = (folder / name for name in (AUTHORITY, CERTIFICATE, KEY))
    for path in (authority, certificate, key):
        try:
            path.stat()
        except OSError as error:
            raise ConfigurationError(
                f"{path}: {error.strerror}; expected {AUTHORITY}, {CERTIFICATE} and {KEY} there, as adamctl tls create "
                "makes them"
            ) from error
    check_private(key)
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        try:
            contexts.append(_context(side, authority, certificate, key))
        except (ssl.SSLError, OSError) as error:
            what = getattr(error, "reason", None) or error
            raise ConfigurationError(
                f"{folder}: {AUTHORITY}, {CERTIFICATE} and {KEY} cannot be used: {what}; adamctl tls show {folder} "
                "says more"
            ) from error
    return _checked(folder, *contexts)


def make_private_folder(path: Path) -> Path:
    """Makes a folder that only its owner can enter. Raises ConfigurationError: it cannot be made."""
    try:
        make_private(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror}; choose another folder") from error
    return path


def write_private(path: Path, content: bytes) -> None:
    """Writes or replaces a file at once, for its owner only. Raises ConfigurationError: it cannot be written."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        with open(new, "xb", opener=PRIVATE) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error


def write_folder(folder: Path, authorities: bytes, certificate: bytes, key: bytes) -> None:
    """Writes a process's files, all PEM: the certificate last, so that whoever sees it has its key.

    Args:
        key: empty if it is there already.

    Raises:
        ConfigurationError: they cannot be written.
    """
    make_private_folder(folder)
    write_private(folder / AUTHORITY, authorities)
    if key:
        write_private(folder / KEY, key)
    write_private(folder / CERTIFICATE, certificate)


def check_private(key: Path) -> None:
    """Raises ConfigurationError: other users can read a key, or it cannot be looked at."""
    try:
        mode = key.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{key}: {error.strerror}") from error
    if mode & _OTHERS:
        raise ConfigurationError(
            f"{key}: other users may read it (mode {stat.S_IMODE(mode):04o}); expected 0600: chmod 600 {key}, and make "
            "a new certificate if others may have read it"
        )


def _context(side: int, authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the identity is a URI, and is checked against the record, not an address
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    context.load_cert_chain(certificate, key, password=_no_password)
    context.load_verify_locations(authority)
    return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; expected one without a password, readable only by its owner")


def _checked(folder: Path, server: ssl.SSLContext, client: ssl.SSLContext) -> Loaded:
    """Returns the state, once its certificate has accepted itself at both ends of a connection in memory."""
    near, far = TlsEngine(client, server_side=False), TlsEngine(server, server_side=True)
    unnamed = Identity("?", "?", "?")
    try:
        for _ in range(4):
            near.shake()
            far.receive(memoryview(near.take()))
            far.shake()
            near.receive(memoryview(far.take()))
    except ssl.SSLError as error:
        text = str(failure(error, Ends(unnamed, None, str(folder), str(folder))))
        raise ConfigurationError(f"{folder / CERTIFICATE}: {text.partition(': ')[2]}") from error
    found = far.certificate
    try:
        identity = certificate_identity(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"{folder / CERTIFICATE}: {error}") from None
    lifetime = Lifetime(*(ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter")))
    return Loaded(identity, lifetime, server, client, frozenset(client.get_ca_certs(binary_form=True)), str(folder))


def _stamp(folder: Path) -> tuple[tuple[int, int, int], ...]:
    return stamp_of(folder / name for name in (AUTHORITY, CERTIFICATE, KEY))


def stamp_of(paths: Iterable[Path]) -> tuple[tuple[int, int, int], ...]:
    """Returns what changes when one of the files is replaced or written, or who may read it."""
    found = []
    for path in paths:
        try:
            state = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((state.st_ino, state.st_size, state.st_ctime_ns))
    return tuple(found)
