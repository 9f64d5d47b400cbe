"""What cannot be measured is said before anything is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.bench import peer
from adamctl.bench.ps.throughput import PsSettings
from adamctl.cli.main import application
from adamctl.cli.options import Picture
from adamctl.errors import ConfigurationError

MNIST = str(Path(__file__).parents[3] / "examples" / "mnist.toml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("kernels", "--threads", "0"), "0 is not in the range x>=1"),
        (("kernels", "--batch", "0"), "0 is not in the range x>=1"),
        (("kernels", "--seconds", "0"), "expected a number above 0 and at most 1,000,000; found 0"),
        (
            ("kernels", "--plot", "picture.txt"),
            "expected a name that ends in one of .svg, .png, .pdf; found picture.txt",
        ),
        (("kernels", "--plot", "no-such-folder/p.svg"), "expected a file in an existing folder"),
        (("worker", MNIST, "--rounds", "0"), "0 is not in the range x>=1"),
        (
            ("worker", MNIST, "--batches", "32,0"),
            "expected whole numbers of at least 1, separated by commas; found '32,0'",
        ),
        (("worker", MNIST, "--vs", "tensorflow"), "'tensorflow' is not 'torch'"),
        (("store", "--rounds", "0"), "0 is not in the range x>=1"),
        (("store", "--hours", "-1"), "expected a number above 0 and at most 1,000,000; found -1"),
        (("net", "--gigabytes", "0"), "expected a number above 0 and at most 1,000,000; found 0"),
        (("ps-throughput", "--mode", "sideways"), "'sideways' is not one of"),
        (("ps-throughput", "--model-megabytes", "-4"), "above 0 and at most 1,000,000; found -4\n"),
        (("ps-throughput", "--block-kib", "nan"), "above 0 and at most 1,000,000; found nan"),
        (("ps-throughput", "--rounds", "0"), "0 is not in the range x>=1"),
        (("failover", "--lease", "4,nan"), "found nan in '4,nan'; separate several numbers by commas"),
        (("failover", "--model-megabytes", "1001"), "expected a number above 0 and at most 1,000; found 1001"),
    ],
)
def test_bad_flags_end_with_usage(arguments: tuple[str, ...], expected: str) -> None:
    result = CliRunner().invoke(application, ["bench", *arguments])
    assert result.exit_code == 2
    assert expected in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("kernels", "--only", "no-such-kernel"), "expected part of a kernel's name"),
        (("kernels", "no-such-file.toml"), "no such experiment file"),
        (("worker", "no-such-file.toml"), "no such experiment file"),
        (("worker", MNIST, "--vs", "torch", "--peer-python", "no-such-python"), "expected an interpreter"),
        (("data", "--only", "decode", "--peer-python", "no-such-python"), "there is no such program"),
        (("sandblaster", "--only", "evaluations", "--peer-python", "no-such-python"), "there is no such program"),
        (("ps-throughput", "--stress", "--linear"), "expected only one of them"),
        (("ps-throughput", "--stress", "--mode", "push", "--dtype", "float16"), "expected no --mode, --dtype"),
        (("ps-throughput", "--stress", "--rounds", "5"), "--stress: expected no --rounds"),
        (
            ("ps-throughput", "--stress", "--cores", "1,2"),
            "--stress: expected one value of --apply-threads; found 1, 2",
        ),
        (("ps-throughput", "--linear", "--apply-threads", "4,2"), "--linear: expected one value of --apply-threads"),
        (("ps-throughput", "--stress", "--block-kib", "64,128"), "--stress: expected one value of --block-kib"),
        (
            ("ps-throughput", "--linear", "--transport", "tcp", "--transport", "unix"),
            "one value of --transport; found tcp",
        ),
        (("ps-throughput", "--block-kib", "1024,100000"), "--block-kib: expected at most 32,767"),
        (("ps-throughput", "--vs", "torch-rpc", "--clients", "2"), "--vs torch-rpc: expected 1 in --clients"),
        (("ps-throughput", "--vs", "torch-rpc", "--mode", "local"), "--vs torch-rpc: expected a mode"),
    ],
)
def test_what_is_not_there_is_named(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        CliRunner().invoke(application, ["bench", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("--linear",), "--linear: expected no --plot"), (("--mode", "pull"), "found only pull")],
)
def test_a_picture_of_nothing_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(Picture, "convert", lambda self, value, *_: Path(value))  # matplotlib may be missing
    with pytest.raises(ConfigurationError, match=expected):
        flags = ["bench", "ps-throughput", *arguments, "--plot", str(tmp_path / "p.svg")]
        CliRunner().invoke(application, flags, catch_exceptions=False)


KERNEL = {"kernel": "dense", "limit_gb_per_s": 2.0, "numpy_gb_per_s": 1.0}
PUSH = {
    "mode": "push", "transport": "tcp", "apply_threads": 1, "clients": 2, "servers": 1, "gb_per_s": 1.0,
    "limit_gb_per_s": 2.0, "fraction_of_limit": 0.5, "limit": "sockets", "g_updates_per_s": 0.25, "dtype": "float16",
    "block_bytes": 1 << 16, "our_options_gb_per_s": 3.0, "fraction_of_our_options": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize(
    ("arguments", "measures", "plots", "row"),
    [
        (("ps-throughput", "--mode", "push"), "ps.throughput.run_ps_benchmark", "plot_ps", PUSH),
        (("kernels",), "kernels.kernels.run_kernels_benchmark", "plot_kernels", KERNEL),
        (("worker", MNIST), "worker.worker.run_worker_benchmark", "plot_worker", {"side": "adamctl", "batch": 32}),
    ],
)
def test_what_was_measured_is_printed_whatever_becomes_of_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], measures: str, plots: str,
    row: dict[str, object], flags: tuple[str, ...],
) -> None:  # fmt: skip
    def fail(report: dict[str, object], path: Path) -> None:
        raise ConfigurationError(f"--plot {path}: disk full")

    report = {"results": [row], "machine": {"cores": 2}, "versions": {"python": "3"}}
    monkeypatch.setattr(Picture, "convert", lambda self, value, *_: Path(value))
    monkeypatch.setattr(f"adamctl.bench.{measures}", lambda *_, **__: report)
    monkeypatch.setattr(f"adamctl.bench.plot.{plots}", fail)
    result = CliRunner().invoke(application, ["bench", *arguments, "--plot", str(tmp_path / "p.svg"), *flags])
    assert isinstance(result.exception, ConfigurationError) and "disk full" in str(result.exception)
    if flags:
        assert json.loads(result.stdout)["results"] == [row]
    else:
        assert str(next(iter(row.values()))) in result.stdout and "cores 2" in result.stdout


def test_every_combination_of_blocks_types_and_transports_is_measured_and_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[PsSettings] = []

    def measure(*settings: PsSettings, **_: object) -> dict[str, object]:
        asked.extend(settings)
        rows = [PUSH | {"transport": "tcp", "limit": "sockets, tcp"}, PUSH | {"transport": "unix"}]
        return {"results": rows, "machine": {}, "versions": {}}

    monkeypatch.setattr("adamctl.bench.ps.throughput.run_ps_benchmark", measure)
    flags = [
        "--mode",
        "push",
        "--model-megabytes",
        "0.1",
        "--block-kib",
        "16,64",
        "--dtype",
        "float16",
        "--dtype",
        "float32",
        "--transport",
        "tcp",
    ]
    result = CliRunner().invoke(application, ["bench", "ps-throughput", *flags], catch_exceptions=False)
    assert [(one.block_bytes, one.wire, one.transport) for one in asked] == [
        (1 << 14, "float16", "tcp"), (1 << 16, "float16", "tcp"), (1 << 14, "float32", "tcp"),
        (1 << 16, "float32", "tcp"),
    ]  # fmt: skip
    lines = result.stdout.splitlines()
    assert lines[1].split()[:7] == ["push", "tcp", "1", "2", "1", "64", "float16"]
    assert "limit of push: sockets, tcp" in lines and "limit of push: sockets" in lines
    assert any(
        line.startswith("push, unix, float16, 64 KiB, 1 thread(s), 2 client(s), 1 server(s): ") for line in lines
    )


def test_a_peer_without_its_package_is_told_of_at_once() -> None:
    with pytest.raises(ConfigurationError, match="expected an interpreter that has no_such_package"):
        peer.require(sys.executable, "no_such_package")
    peer.require(sys.executable, "json")
