"""`adamctl tls show` and `check`: what certificates say, and whether a role would take them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError
from adamctl.net.address import TLS_VARIABLE

_PATH = click.Path(path_type=Path)
EXPIRING = 4


@click.command("show")
@click.argument("places", metavar="DIR|FILE...", nargs=-1, type=_PATH)
@options.json_option
def show(places: tuple[Path, ...], as_json: bool) -> None:
    """Show whom certificates are for, who issued them and until when; by default those in ADAMCTL_TLS."""
    from adamctl.cli.tls.files import read_certificates
    from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE
    from adamctl.net.tls.expiry import duration

    rows: list[dict[str, Any]] = []
    for place in places or (_chosen(),):
        names = [name for name in (CERTIFICATE, AUTHORITY) if (place / name).exists()] if place.is_dir() else []
        for path in [place / name for name in names] or [place]:
            for one in read_certificates(path, "a certificate, or a folder of certificates"):
                rows.append({"file": str(path), **one._asdict(), "seconds_left": round(one.not_after_s - time.time())})
    if as_json:
        print_json({"certificates": rows})
        return
    for row in rows:
        left = duration(row["seconds_left"]) if row["seconds_left"] > 0 else "expired"
        since, until = (_minute(row[key]) for key in ("not_before_s", "not_after_s"))
        kind = "authority of" if row["is_authority"] else "for"
        echo(f"{row['file']}: {kind} {row['uri'] or 'nobody (no adam:// URI)'}")
        echo(f"  valid {since} to {until} UTC ({left}), issued by {row['issuer']}")
        echo(f"  SHA-256 {row['fingerprint']}")


@click.command("check")
@click.argument("folder", metavar="[DIR]", required=False, type=_PATH)
@options.json_option
def check(folder: Path | None, as_json: bool) -> int:
    """Check a folder, by default ADAMCTL_TLS, as a role does when it starts: files, key, chain, dates, identity.

    Exit code 0: it can be used; 4: it can, and expires soon; 2: it cannot.
    """
    from adamctl.net.tls.credentials import load
    from adamctl.net.tls.identity import allowed

    place = folder or _chosen()
    loaded = load(place)
    warning = loaded.lifetime.warning(time.time())
    if as_json:
        left_s = round(loaded.lifetime.left_s(time.time()))
        print_json({"folder": str(place), "identity": str(loaded.identity), "seconds_left": left_s, "warning": warning})
    else:
        until = _minute(loaded.lifetime.not_after_s)
        echo(f"{place}: {loaded.identity} can be used until {until} UTC; {allowed(loaded.identity)}")
        if warning:
            echo(f"it {warning}: adamctl tls renew {place}")
    return EXPIRING if warning else 0


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _chosen() -> Path:
    folder = os.environ.get(TLS_VARIABLE, "")
    if not folder:
        raise ConfigurationError(f"expected a folder of certificates: give DIR or set {TLS_VARIABLE}")
    return Path(folder)
