"""Certificates that the holders of one token make for each other: the front of a run on hosts, and its agents.

Both derive the key of the same authority from the token, and each makes a certificate for itself with it. So nothing
but the token has to reach a machine before it can speak TLS, and whoever is between two of them can neither read nor
change anything. The authority is never written anywhere (docs/decisions/0045-runs-over-tls.md).
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from adamctl.errors import ConfigurationError
from adamctl.net.tls.authority import AUTHORITY_DAYS, KEY_SEED_BYTES, Pair, issue, need_cryptography, new_authority
from adamctl.net.tls.credentials import Credentials, write_folder
from adamctl.net.tls.identity import PART, make_identity

CLUSTER: Final = "hosts"
"""The cluster that these certificates name. Roles do not trust them: they have those of their run."""
LIFETIME: Final = timedelta(days=AUTHORITY_DAYS)
"""Longer than any run. An authority that ends with its run makes certificates worthless sooner than a date would."""
_CLOCKS_DIFFER: Final = timedelta(days=1)
_SALT: Final = b"adamctl: the authority of a run's front and agents, 1"
_SCRYPT: Final = {"n": 1 << 14, "r": 8, "p": 1}
"""About 50 ms and 16 MiB (RFC 7914), for each guess at a token that a person has thought of."""


def valid_from() -> datetime:
    """Returns the date from which a run's certificates are valid: clocks of its hosts may differ by a day."""
    return datetime.now(UTC) - _CLOCKS_DIFFER


def token_authority(token: str) -> Pair:
    """Returns the authority of everyone who has this token: its key is the same wherever it is made.

    Raises:
        ConfigurationError: there is no token, or `cryptography` is not installed.
    """
    need_cryptography("TLS between the hosts of a run", "or, on a network that you trust, --insecure at every end")
    if not token:
        raise ConfigurationError(
            "expected the run's token, of which its certificate is made: give --token-file FILE, a copy of "
            "secrets/token in the run folder"
        )
    seed = hashlib.scrypt(token.encode(), salt=_SALT, dklen=KEY_SEED_BYTES, **_SCRYPT)
    return new_authority(CLUSTER, now=valid_from(), lifetime=LIFETIME, key_seed=seed)


def token_credentials(token: str, role: str, node: str, folder: Path) -> Credentials:
    """Returns a certificate by which others who have this token know a process; its files go into `folder`.

    Args:
        role: `host` for an agent, `operator` for a front and for commands.
        node: its name, or the part before a point: what follows is a part of it.

    Raises:
        ConfigurationError: as `token_authority`; no certificate can name the node; the folder cannot be written.
    """
    authority = token_authority(token)
    identity = make_identity(CLUSTER, role, node.partition(PART)[0])
    made = issue(authority, identity, now=valid_from(), lifetime=LIFETIME)
    write_folder(folder, authority.certificate, made.certificate, made.key)
    return Credentials(folder)
