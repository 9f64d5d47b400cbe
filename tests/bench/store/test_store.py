"""The store's benchmark reports what its documentation says; its figures are not judged here."""

from __future__ import annotations

from pathlib import Path

from adamctl.bench.store.store import run_store_benchmark


def test_the_report_has_its_fields(tmp_path: Path) -> None:
    report = run_store_benchmark(folder=tmp_path, megabytes=4, rounds=1, hours=0.02, long_run_megabytes=1)
    assert (report["schema_version"], report["bench"]) == (1, "store")
    flush, recovery, *long_runs = report["results"]
    for result in (flush, recovery):
        assert result["seconds"] > 0 and result["bytes"] == 3 << 20
        assert abs(result["fraction_of_limit"] - result["gb_per_s"] / result["limit_gb_per_s"]) < 1e-6, "of one round"
    assert [run["case"] for run in long_runs] == ["long run, even", "long run, uneven"]
    for run in long_runs:
        assert 1 <= run["log_over_live_bytes"] <= 4 and run["updates_per_record"] > 1
        assert 0 <= run["rewritten_share"] < 1 and run["file_over_live_bytes"] > 0
    assert not list(tmp_path.iterdir()), "nothing is left behind"
