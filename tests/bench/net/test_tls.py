"""The benchmark of TLS reports a ratio for each bar, or why it cannot; its figures are not judged here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adamctl.bench.net.tls import BARS, TlsSettings, cipher_rate, run_tls_benchmark

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("before", [None, pytest.param(ROOT, marks=pytest.mark.slow)])
def test_every_bar_has_a_figure_or_a_reason(before: Path | None) -> None:
    report = run_tls_benchmark(TlsSettings(rounds=1, gigabytes=0.01, handshakes=3, before=before))
    rows = {row["part"]: row for row in report["results"]}
    assert list(rows) == list(BARS)
    for name in ("push", "pull"):
        assert rows[name]["ratio"] > 0 and rows[name]["details"]["ours_sender_gb_per_s"] > 0
    assert 0 < rows["handshake"]["ratio"] < 1000 and rows["handshake"]["bar"] == "<= 5"
    if shutil.which("openssl"):
        assert rows["cipher"]["ratio"] > 0 and rows["cipher"]["details"]["cipher"].startswith("TLS_")
    if before is None:
        assert rows["plain"]["meets"] is None and "git worktree" in rows["plain"]["details"]["cannot"]
    else:
        assert rows["plain"]["ratio"] > 0


def test_a_cipher_that_openssl_does_not_know_has_no_rate() -> None:
    assert cipher_rate("TLS_NO_SUCH_THING_SHA1") == []
