"""Bytes of an evaluation are what two runs of different length differ by, and compared with the least there can be."""

from __future__ import annotations

import pytest

from adamctl.bench import namespaces
from adamctl.bench.sandblaster import wire_bytes
from adamctl.bench.sandblaster.wire_bytes import measure_bytes, ratio_of, received_bytes
from adamctl.errors import RunFailedError
from tests.bench.sandblaster.test_whole_runs import LITTLE

DEVICES = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
  eth0: 5 1 0 0 0 0 0 0 6 1
    lo: 1234 10 0 0 0 0 0 0 1234 10
"""


def test_each_worker_pulls_and_each_bundle_is_pushed() -> None:
    found = ratio_of(3 * 4 * 1000 * 42, evaluations=2, bundles=40, parameters=1000)
    assert found["ratio"] == 1.5 and found["least_bytes"] == 168_000 and found["evaluation_bytes"] == 252_000


def test_what_all_runs_send_alike_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([(3, 1_000_000), (8, 2_000_000)])

    def run(*arguments: object) -> tuple[dict[str, object], int]:
        evaluations, sent_bytes = next(runs)
        return {"batch": {"evaluations": evaluations, "bundles_total": 38, "backups": 0}}, sent_bytes

    monkeypatch.setattr(wire_bytes, "_run", run)
    monkeypatch.setattr(namespaces, "missing", lambda: "")
    found = measure_bytes(LITTLE, (3, 8), 1437, ())
    assert found["evaluation_bytes"] == 200_000 and found["evaluations"] == 5
    assert found["ratio"] == 200_000 / (40 * 4 * LITTLE.parameters)


def test_the_loopback_is_found_in_the_table_of_devices() -> None:
    assert received_bytes(DEVICES) == 1234
    with pytest.raises(RunFailedError, match="expected a device lo:"):
        received_bytes("nothing")


def test_without_namespaces_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "missing", lambda: "no namespaces")
    assert measure_bytes(LITTLE, (1, 2), 8, ()) == {"cannot": "no namespaces"}


@pytest.mark.slow
@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
def test_real_runs_are_counted() -> None:
    found = measure_bytes(LITTLE, (2, 12), 1437, ())
    assert found["ratio"] >= 1 and found["evaluations"] == 10
    with pytest.raises(RunFailedError, match="exit status 2"):
        wire_bytes._run(LITTLE, -1, 1437, ())
