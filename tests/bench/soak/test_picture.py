"""The picture of a soak says how long it was and what was lost, and has a line for each process."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.soak.picture import draw
from adamctl.bench.soak.plan import fault_of
from adamctl.bench.soak.record import FAULTS, SAMPLES, Record

pytest.importorskip("matplotlib")


def test_it_tells_length_faults_and_losses(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for at_s in range(0, 7200, 60):
        resident = {"ps-1": 100.0, "controller-1": 30.0} | ({"ps-2": 90.0} if at_s % 600 else {})
        record.add(SAMPLES, {"at_s": at_s, "since_start_s": at_s, "pushes_per_s": 20.0, "resident_mib": resident})
    for number in range(14):
        fault = fault_of(1, number, 4.0)
        values = {"at_s": 30.0 * number, "kind": fault.kind, "node": fault.node, "whole_after_s": 9.0}
        record.add(FAULTS, values)
    result = {
        "case": "3 servers", "minutes": 120.0, "faults": 14, "pushes_acknowledged": 5000, "pushes_lost": 0,
        "growth_mib_per_hour": {"ps-1": 0.31},
    }  # fmt: skip
    files = draw(record, {"results": [result], "machine": {"cores": 2, "processor": "some"}})
    assert [file.name for file in files] == ["soak.png", "soak.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    text = files[1].read_text()  # its characters are drawn; comments say what they are
    for said in ("2.0 hours, 14 faults: 5,000 acknowledged pushes, 0 lost", "ps-1, +0.3 MiB/h", "controller killed"):
        assert said in text
