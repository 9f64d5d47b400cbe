"""`bench worker` on a little network: rows for every setting, ratios of one run, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.bench.plot import plot_worker
from adamctl.bench.worker.torch_peer import TorchPeer, settings_for
from adamctl.bench.worker.trainer import Trainer
from adamctl.bench.worker.worker import run_worker_benchmark
from adamctl.cli.bench.bench import command
from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from tests.bench.peers_for_tests import interpreter

MODEL = Model((8, 8, 1), (Conv2D(3, 3, activation="relu"), MaxPool2D(2), Dense(9, "relu"), Softmax(4)))
EXPERIMENT = Experiment(
    name="little", model=MODEL, optimizer=OptimizerConfig(clip_norm=1.0), train=TrainConfig(n_push=3, n_fetch=3)
)


def test_a_trainer_counts_what_its_threads_trained() -> None:
    trainer = Trainer(EXPERIMENT, 2, 16)
    try:
        rate = trainer.run(0.05)
        again = trainer.run(0.05)
    finally:
        trainer.close()
    for one in (rate, again):
        assert one.examples >= 16
        assert one.examples % 16 == 0
        assert one.seconds > 0
    assert trainer.connections == 9 * 36 * 3 + 27 * 9 + 9 * 4


def test_training_changes_the_weights_of_all_layers() -> None:
    trainer = Trainer(EXPERIMENT, 1, 16)
    before = trainer._replica.weights.copy()
    try:
        trainer.run(0.05)
    finally:
        trainer.close()
    for tensor in trainer._replica.layout.tensors:
        part = slice(tensor.offset, tensor.offset + tensor.size)
        assert (trainer._replica.weights[part] != before[part]).any(), tensor.name


def test_a_failure_in_a_thread_ends_the_round() -> None:
    trainer = Trainer(EXPERIMENT, 1, 16)
    try:
        for labels in (batch.labels for batch in trainer._batches):
            labels[:] = 99
        with pytest.raises(ValueError, match="99"):
            trainer.run(0.05)
    finally:
        trainer.close()


def test_the_report_has_a_row_for_each_setting() -> None:
    report = run_worker_benchmark(EXPERIMENT, (1, 2), (8, 16), rounds=2, seconds=0.02)
    assert [(row["batch"], row["threads"]) for row in report["results"]] == [(8, 1), (8, 2), (16, 1), (16, 2)]
    first = report["results"][0]
    assert first["speed_up"] == 1.0
    assert first["connections_per_s"] == pytest.approx(first["images_per_s"] * 1251, rel=0.01)
    assert "comparison" not in report
    assert [lock["batch"] for lock in report["interpreter_lock"]] == [8, 16]
    for lock in report["interpreter_lock"]:
        assert 0 <= lock["held_share"] <= 1
        assert 0 < lock["predicted_speed_up"]["16"] <= 16


def test_every_setting_of_the_peer_is_tried() -> None:
    settings = list(settings_for(MODEL, (8, 16), 2))
    assert len(settings) == 8
    assert {(s.threads, s.processes) for s in settings} == {(2, 1), (1, 2)}
    assert {s.channels_last for s in settings} == {False, True}
    assert len(list(settings_for(Model((5,), (Softmax(2),)), (8,), 1))) == 1


def test_the_best_of_both_are_compared(tmp_path: Path) -> None:
    report = run_worker_benchmark(EXPERIMENT, (1,), (8, 16), rounds=2, seconds=0.02, peer_python=interpreter(tmp_path))
    comparison = report["comparison"]
    assert comparison["torch"] == {"threads": 1, "batch": 16, "setting": "channels last"}
    assert comparison["torch_images_per_s"] == 16000
    assert comparison["ratio_vs_torch"] == pytest.approx(comparison["adamctl_images_per_s"] / 16000, rel=0.5)
    compiled = report["results"][-1]
    assert "torch.compile" in compiled["setting"]
    assert "no compiler" in compiled["setting"]
    picture = tmp_path / "figure.svg"
    pytest.importorskip("matplotlib")
    plot_worker(report, picture)
    assert "billion connections per second" in picture.read_text()


def test_processes_of_a_peer_add_up(tmp_path: Path) -> None:
    setting = list(settings_for(MODEL, (8,), 2))[1]
    with TorchPeer(interpreter(tmp_path), MODEL, setting) as peer:
        assert peer.run(0.01).images_per_s == pytest.approx(2 * 10 * 8 / 0.01)


def test_a_peer_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOT_INSTALLED", "1")
    with pytest.raises(ConfigurationError, match="No module named 'torch'"):
        run_worker_benchmark(EXPERIMENT, (1,), (8,), rounds=1, seconds=0.01, peer_python=interpreter(tmp_path))


def test_the_command_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "little.toml"
    file.write_text('name = "little"\n[model]\ninput = [6]\n[[model.layers]]\ntype = "softmax"\nunits = 3\n')
    arguments = ["worker", str(file), "--thread-counts", "1", "--batches", "4", "--rounds", "1", "--seconds", "0.01"]
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["results"][0]["batch"] == 4


def test_a_wrong_list_of_counts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("")
    result = CliRunner().invoke(command, ["worker", str(file), "--batches", "4,none"])
    assert result.exit_code == 2
    assert "expected whole numbers of at least 1" in result.output
