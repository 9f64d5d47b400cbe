"""A role's own certificate while it runs: read again when asked or changed, its end told in the log and in STATUS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from adamctl.net.tls.credentials import Credentials

_LOOK_S_MAX = 60.0
_LOOK_SHARE = 0.01


class CertificateWatch:
    """Looks at the files from time to time, also where no connection is made, and tells each stage of the end once."""

    def __init__(self, credentials: Credentials, log: logging.Logger) -> None:
        self._credentials = credentials
        self._log = log
        self._end_s, self._told = 0.0, 0  # of the newest certificate, and the last stage that was told

    def look(self, *, anew: bool = False) -> float:
        """Takes a changed certificate, `anew` an unchanged one too; logs its end when a stage of it is reached.

        Returns after how many seconds to look again.
        """
        if anew:
            self._credentials.look(anew=True)
        loaded, now = self._credentials.current, self._credentials.clock()
        lifetime = loaded.lifetime
        if lifetime.not_after_s != self._end_s:
            self._end_s, self._told = lifetime.not_after_s, 0
        if (stage := lifetime.stage(now)) > self._told:
            self._told = stage
            self._log.warning(
                "the certificate for %s %s (%s); adamctl tls renew, and this process takes the new one by itself",
                loaded.identity, lifetime.warning(now), loaded.folder,
            )  # fmt: skip
        return min(_LOOK_S_MAX, max(1.0, _LOOK_SHARE * (lifetime.not_after_s - lifetime.not_before_s)))

    def status(self) -> dict[str, Any]:
        """Returns what STATUS says: whom the certificate is for, when it ends, the seconds left, and what to tell."""
        loaded, now = self._credentials.current, self._credentials.clock()
        lifetime = loaded.lifetime
        return {
            "identity": str(loaded.identity),
            "not_after_s": lifetime.not_after_s,
            "seconds_left": round(lifetime.left_s(now), 1),
            "warning": lifetime.warning(now),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks from time to time while the block lasts."""

        async def watch() -> None:
            while True:
                wait_s = self.look()
                await asyncio.sleep(wait_s)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
