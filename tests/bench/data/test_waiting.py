"""A run whose worker's waiting is measured: on little, it trains, and what counts is the median share."""

from __future__ import annotations

from adamctl.bench.data.parts import DataSettings
from adamctl.bench.data.waiting import DISTORTIONS, measure, measure_waiting
from adamctl.config.augment import AugmentConfig
from adamctl.config.data import DataConfig
from adamctl.model.description import Dense, Model, Softmax

MODEL = Model((8, 8, 1), (Dense(4), Softmax(10)))


def test_a_workers_waiting_and_a_servers_cores_are_measured() -> None:
    data = DataConfig(augment=AugmentConfig(rotate=10, translate=0.5))
    lines: list[str] = []
    found = measure_waiting(data, MODEL, passes=2, rounds=1, progress=lines.append)
    assert lines == ["waiting: run 1 of 1, 2 passes"]
    assert 0 <= found["least"] == found["ratio"] == found["most"] <= 1
    assert found["images_per_s"] > 0 and found["data_server_cores"] >= 0


def test_images_are_distorted_affinely_and_elastically() -> None:
    assert DISTORTIONS.rotate and DISTORTIONS.scale and DISTORTIONS.shear and DISTORTIONS.elastic.alpha


def test_a_missing_set_is_told_and_nothing_is_run() -> None:
    lines: list[str] = []
    found = measure(DataSettings(data=("/nowhere",)), lines.append)
    assert found == {"waiting": {"cannot": "mnist is in none of the folders of --data"}} and not lines
