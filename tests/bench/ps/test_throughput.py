"""The parameter server's benchmark measures what it says and checks what it pushed; its figures are not judged here."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from adamctl.bench import namespaces
from adamctl.bench.figures.runs import command
from adamctl.bench.net.plain_sockets import PlainSockets
from adamctl.bench.plot import plot_ps
from adamctl.bench.ps.job import BLOCK_BYTES_MAX, FactorsSize
from adamctl.bench.ps.throughput import MODES, PsSettings, run_ps_benchmark
from adamctl.errors import ConfigurationError
from adamctl.model.wire_types import WireType
from tests.bench.peers_for_tests import interpreter

TINY = {
    "model_bytes": 200_000,
    "block_bytes": 1 << 14,
    "rounds": 1,
    "seconds": 0.05,
    "factors": FactorsSize(64, 48, 64),
}
RPC = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "start":
        answer = {"ok": request["transport"] == "uv", "torch_version": "0.0", "error": "no shared memory"}
    else:
        answer = {"ok": True, "bytes": 1000 * request["window"], "updates": 10, "seconds": 0.001}
    print(json.dumps(answer), flush=True)
"""


def test_every_mode_stands_next_to_its_limit_and_to_the_peer(tmp_path: Path) -> None:
    settings = PsSettings(transport="tcp", apply_threads=(1,), peer_python=interpreter(tmp_path, RPC), **TINY)  # type: ignore[arg-type]
    report = run_ps_benchmark(settings)
    assert (report["schema_version"], report["bench"], report["adam_g_updates_per_s"]) == (1, "ps-throughput", 13.0)
    assert report["versions"]["torch"] == "0.0"
    rows = {row["mode"]: row for row in report["results"]}
    assert list(rows) == ["push", "pull", "both", "factors", "local, 1 delta", "local, 8 deltas", "local, factors"]
    for mode, row in rows.items():
        unit = "g_updates_per_s" if "factors" in mode else "gb_per_s"
        assert row[unit] > 0 and row["limit"]
        assert abs(row["fraction_of_limit"] - row[unit] / row[f"limit_{unit}"]) < 1e-6
        assert row["speed_up_by_threads"] == 1.0
    for mode in ("push", "pull", "both"):
        row = rows[mode]
        assert abs(row["fraction_of_our_options"] - row["gb_per_s"] / row["our_options_gb_per_s"]) < 1e-6
    for mode in ("push", "pull", "factors"):
        assert rows[mode]["torch_rpc_transport"] == "uv" and rows[mode]["ratio_vs_torch_rpc"] > 0
    assert rows["push"]["torch_rpc_window"] == 16, "the best window is kept"
    plot_ps(report, tmp_path / "figure.svg")
    assert "Adam" in (tmp_path / "figure.svg").read_text()


def test_a_picture_has_a_line_for_everything_that_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"mode": "push", "clients": clients, "servers": servers, "apply_threads": threads, "g_updates_per_s": 0.2}
        for clients, servers, threads in ((2, 1, 2), (2, 1, 1), (2, 4, 1))
    ]
    local = {"mode": "local, 1 delta", "apply_threads": 1, "g_updates_per_s": 0.4}
    results = [row | {"fraction_of_limit": 0.5} for row in (*rows, local)]
    for dtype, block_bytes in (("float16", 1 << 20), ("float32", 1 << 14)):
        other = {"mode": "factors", "apply_threads": 1, "g_updates_per_s": 0.3, "fraction_of_limit": 0.5}
        results.append(other | {"dtype": dtype, "block_bytes": block_bytes})
    results.append({"mode": "pull", "apply_threads": 1, "g_updates_per_s": None, "fraction_of_limit": 0.5})
    report = {"results": results, "machine": {"processor": "some"}, "adam_g_updates_per_s": 13.0}
    plot_ps(report, tmp_path / "figure.svg")
    shown = re.findall(r"<!-- (.*) -->", (tmp_path / "figure.svg").read_text())
    assert shown[-6:] == [
        "push, 2 clients", "push, 2 clients, 4 servers", "local, 1 delta", "factors, float16, 1024 KiB",
        "factors, float32, 16 KiB", "Adam, 16 cores: 13",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="found none"):
        plot_ps(report | {"results": results[-1:]}, tmp_path / "none.svg")


def test_several_clients_servers_and_threads() -> None:
    settings = PsSettings(modes=("both",), clients=(2,), servers=(2,), apply_threads=(1, 2), **TINY)  # type: ignore[arg-type]
    first, second = run_ps_benchmark(settings)["results"]
    assert [first["apply_threads"], second["apply_threads"]] == [1, 2]
    assert first["clients"] == first["servers"] == 2
    assert second["speed_up_by_threads"] == pytest.approx(second["gb_per_s"] / first["gb_per_s"])


@pytest.mark.slow
@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
def test_a_server_behind_a_link_takes_what_the_link_lets_through() -> None:
    arguments = ("--transport", "tcp", "--link", "40Mbit", "--model-megabytes", "1", "--apply-threads", "1")
    report = command(("bench", "ps-throughput", "--mode", "push", "--rounds", "1", "--seconds", "3", *arguments))
    (row,) = report["results"]
    assert row["link_mbit_per_s"] == 40 and row["limit"].endswith("or the link")
    assert row["limit_gb_per_s"] == pytest.approx(0.005 * namespaces.TCP_SHARE)
    assert 0 < row["gb_per_s"] < 0.0055, "a bucket's first burst is above the rate"


def test_several_settings_are_told_apart_and_what_does_not_travel_is_measured_once() -> None:
    settings = PsSettings(modes=("push", "local"), transport="tcp", **TINY)  # type: ignore[arg-type]
    others = (
        replace(settings, wire="float16", transport="unix"),
        replace(settings, modes=("local",), block_bytes=1 << 15),
    )
    rows = run_ps_benchmark(settings, *others)["results"]
    assert [(row["mode"], row["transport"], row["dtype"], row["block_bytes"]) for row in rows[:2]] == [
        ("push", "tcp", "float32", 1 << 14), ("push", "unix", "float16", 1 << 14),
    ]  # fmt: skip
    assert [row.get("block_bytes") for row in rows[2:]] == 2 * [1 << 14] + [None] + 2 * [1 << 15] + [None]
    assert {row["speed_up_by_threads"] for row in rows} == {1.0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 0}, "--rounds"),
        ({"seconds": 0.0}, "--seconds"),
        ({"seconds": inf}, "--seconds"),
        ({"seconds": nan}, "--seconds"),
        ({"model_bytes": -4_000_000}, "--model-megabytes: expected more than 0; found -4$"),
        ({"model_bytes": 0}, "--model-megabytes"),
        ({"block_bytes": 1 << 20, "model_bytes": 1000}, "--block-kib"),
        ({"block_bytes": 1001}, "--block-kib"),
        ({"block_bytes": 100_000 << 10}, "--block-kib: expected at most 32,767, .*; found 100,000$"),
        ({"block_bytes": 32 << 20}, "--block-kib: expected at most 32,767, .*; found 32,768$"),
        (
            {"peer_python": "python", "clients": (2, 4)},
            "--vs torch-rpc: expected 1 in --clients, .* found --clients 2, 4",
        ),
        ({"peer_python": "python", "servers": (2,)}, "--vs torch-rpc: expected 1 in --servers"),
        (
            {"peer_python": "python", "modes": ("local", "both")},
            "--vs torch-rpc: .* push, pull, factors; found local, both",
        ),
        ({"modes": ("shove",)}, "--mode: expected some of " + ", ".join(MODES)),
        ({"transport": "pigeon"}, "--transport"),
        ({"wire": "float8"}, "--dtype"),
        ({"link_bytes_per_s": 1e6, "modes": ("push",)}, "--link: expected --transport tcp"),
        ({"link_bytes_per_s": 1e6, "transport": "tcp", "modes": ("push", "local")}, "--link: expected --transport tcp"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PsSettings(**wrong)  # type: ignore[arg-type]


def test_settings_at_the_edge_of_what_can_be_measured() -> None:
    PsSettings(block_bytes=BLOCK_BYTES_MAX)
    PsSettings(modes=("local",), block_bytes=64 << 20)
    PsSettings(modes=("push", "local"), clients=(1, 2), servers=(2, 1), peer_python="python")


def test_an_interpreter_without_pytorch_is_said_to_be_one(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "raise SystemExit(\"ModuleNotFoundError: No module named 'torch'\")")
    settings = PsSettings(modes=("push",), peer_python=python, **TINY)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"No module named 'torch'.*--peer-python"):
        run_ps_benchmark(settings)


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_sixteen_bits_on_the_wire_add_up_too(wire: WireType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainSockets, "gb_per_s", lambda self, blocks: 3.0)
    settings = PsSettings(modes=("both", "factors"), wire=wire, **TINY)  # type: ignore[arg-type]
    both, factors = run_ps_benchmark(settings)["results"]
    assert both["dtype"] == wire and both["gb_per_s"] > 0 and factors["g_updates_per_s"] > 0
    assert both["limit_gb_per_s"] == 6.0, "of what would be float32: the socket carries half of the bytes"
