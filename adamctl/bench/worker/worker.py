"""Images and connections per second of a worker's compute threads, by thread count and batch size (Adam figure 8).

Rounds of all thread counts alternate, so that all see the same machine state; the median of each counts. With a peer,
its settings are tried one after another, and then the best of ours and the best of the peer's alternate.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from adamctl.bench.report import make_report
from adamctl.bench.worker.interpreter import interpreter_share
from adamctl.bench.worker.torch_peer import PeerSetting, TorchPeer, scan
from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.kernels.backend import installed

PACKAGES = ("adamctl", "numpy", "numba")
WARM_UP_S = 0.3
PREDICTED_THREADS = (2, 4, 8, 16)

Progress = Callable[[str], None]


def run_worker_benchmark(
    experiment: Experiment,
    threads: Sequence[int],
    batches: Sequence[int],
    *,
    rounds: int = 5,
    seconds: float = 1.0,
    peer_python: str | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measures and returns the report.

    Args:
        experiment: the source of model, clipping and push settings.
        threads: thread counts; speed-ups are relative to the first.
        batches: examples per step, each tried with every thread count.
        rounds, seconds: number and length of each setting's rounds.
        peer_python: an interpreter that has PyTorch, to compare with; None: no comparison.
        progress: called before each measurement with its description.
    """
    results = [row for batch in batches for row in _scaling(experiment, threads, batch, rounds, seconds, progress)]
    report = make_report("worker", PACKAGES, results)
    report["model"] = experiment.name
    report["rounds"], report["seconds_per_round"], report["warm_up_seconds"] = rounds, seconds, WARM_UP_S
    if "numba" in installed():
        report["interpreter_lock"] = [_lock(experiment, batch, rounds, seconds, progress) for batch in batches]
    if peer_python is not None:
        rows = scan(peer_python, experiment.model, batches, max(threads), seconds, progress)
        connections = results[0]["connections_per_example"]
        report["results"] += [_peer_row(setting, rate, why, connections) for setting, rate, why in rows]
        best_setting = max((rate, index) for index, (_, rate, _) in enumerate(rows) if rate is not None)[1]
        best_ours = max(results, key=lambda row: row["images_per_s"])
        report["comparison"] = _compare(
            experiment, best_ours, peer_python, rows[best_setting][0], rounds, seconds, progress
        )
        report["versions"]["torch"] = report["comparison"].pop("torch_version")
    return report


def _scaling(
    experiment: Experiment, threads: Sequence[int], batch: int, rounds: int, seconds: float, progress: Progress
) -> list[dict[str, Any]]:
    trainers = [Trainer(experiment, count, batch) for count in threads]
    rates: list[list[float]] = [[] for _ in trainers]
    try:
        for trainer in trainers:
            trainer.run(WARM_UP_S)
        for number in range(rounds):
            progress(f"batch {batch}, {', '.join(map(str, threads))} thread(s), round {number + 1} of {rounds}")
            for trainer, mine in zip(trainers, rates, strict=True):
                mine.append(trainer.run(seconds).images_per_s)
    finally:
        for trainer in trainers:
            trainer.close()
    rows = []
    for trainer, mine in zip(trainers, rates, strict=True):
        speed_ups = [rate / first for rate, first in zip(mine, rates[0], strict=True)]
        rows.append(
            {
                "side": "adamctl",
                "batch": batch,
                "threads": trainer.threads,
                "setting": "one replica",
                "images_per_s": round(statistics.median(mine), 1),
                "connections_per_s": round(statistics.median(mine) * trainer.connections),
                "speed_up": round(statistics.median(speed_ups), 3),
                "connections_per_example": trainer.connections,
            }
        )
    return rows


def _lock(experiment: Experiment, batch: int, rounds: int, seconds: float, progress: Progress) -> dict[str, Any]:
    progress(f"batch {batch}, 1 thread(s), the share of a step that holds the interpreter lock")
    share = interpreter_share(experiment, batch, 1, seconds, rounds)
    return {
        "batch": batch,
        "threads": share.threads,
        "native_step": share.is_native,
        "held_share": round(share.held, 4),
        "held_us_per_step": round(share.per_step_us, 1),
        "step_us": round(share.step_us, 1),
        "predicted_speed_up": {str(count): round(share.speed_up(count), 2) for count in PREDICTED_THREADS},
    }


def _peer_row(setting: PeerSetting, rate: float | None, why: str, connections: int) -> dict[str, Any]:
    return {
        "side": "torch",
        "batch": setting.batch,
        "threads": setting.threads,
        "setting": setting.describe() if rate is not None else f"{setting.describe()}: {why}",
        "images_per_s": None if rate is None else round(rate, 1),
        "connections_per_s": None if rate is None else round(rate * connections),
        "speed_up": None,
        "connections_per_example": connections,
    }


def _compare(
    experiment: Experiment,
    ours: dict[str, Any],
    python: str,
    setting: PeerSetting,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> dict[str, Any]:
    """Alternates the best of ours and of the peer's."""
    pairs = []
    with (
        closing(Trainer(experiment, ours["threads"], ours["batch"])) as trainer,
        TorchPeer(python, experiment.model, setting) as peer,
    ):
        trainer.run(WARM_UP_S)
        for number in range(rounds):
            progress(f"best against best, round {number + 1} of {rounds}")
            pairs.append((trainer.run(seconds).images_per_s, peer.run(seconds).images_per_s))
        version = peer.version
    ratios = [mine / theirs for mine, theirs in pairs]
    return {
        "adamctl": {"threads": ours["threads"], "batch": ours["batch"]},
        "torch": {"threads": setting.threads, "batch": setting.batch, "setting": setting.describe()},
        "adamctl_images_per_s": round(statistics.median(mine for mine, _ in pairs), 1),
        "torch_images_per_s": round(statistics.median(theirs for _, theirs in pairs), 1),
        "ratio_vs_torch": round(statistics.median(ratios), 3),
        "ratios_vs_torch": [round(ratio, 3) for ratio in ratios],
        "torch_version": version,
    }
