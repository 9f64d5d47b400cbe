"""The network benchmark reports what its documentation says; its figures are not judged here."""

from __future__ import annotations

from adamctl.bench.net.net import run_net_benchmark


def test_the_report_has_its_fields() -> None:
    report = run_net_benchmark(bytes_per_round=4 << 20, rounds=1, block_bytes=1 << 18)
    assert report["schema_version"] == 1
    assert report["bench"] == "net"
    assert report["machine"]["cores"] >= 1
    assert report["versions"]["uvloop"]
    assert [(result["transport"], result["mode"]) for result in report["results"]] == [
        ("tcp", "one_way"),
        ("tcp", "acknowledged"),
        ("unix", "one_way"),
        ("unix", "acknowledged"),
    ]
    for result in report["results"]:
        assert result["gb_per_s"] > 0
        assert result["limit_gb_per_s"] > 0
        assert result["fraction_of_limit"] > 0
