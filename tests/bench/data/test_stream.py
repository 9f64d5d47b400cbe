"""What is reported of a set larger than memory, and one whole measurement on a small one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.bench.data import stream
from adamctl.bench.data.parts import PARTS, DataSettings
from adamctl.bench.data.stream import AHEAD_BYTES, PASSES, Streamed, best_pass, compared, write_images
from adamctl.bench.watched_run import Sample
from adamctl.errors import RunFailedError

SET_BYTES = 10**9


def test_the_best_run_of_each_side_counts_and_the_most_memory_and_bytes() -> None:
    most = PASSES * SET_BYTES + AHEAD_BYTES
    streamed = [Streamed(90.0, 0.1, most, 10, 5), Streamed(80.0, 0.2, most // 2, stream.MEMORY_BYTES, 5)]
    found = compared(streamed, [Streamed(100.0, 0.0, SET_BYTES, 0, SET_BYTES)], SET_BYTES)
    assert {name: row["ratio"] for name, row in found.items()} == {
        "stream-rate": 0.9,
        "stream-memory": 1.0,
        "stream-bytes": 1.0,
    }
    assert found.keys() == PARTS["stream"].bars.keys()
    assert all(PARTS["stream"].bars[name].is_met(row["ratio"]) for name, row in found.items())


def test_the_fastest_pass_counts_but_the_first() -> None:
    """Of 100 examples: the first takes 1 s, the second 5, the third 4."""
    samples = [Sample(0.0, 0), Sample(2.0, 200 // 2 + 20), Sample(6.0, 200), Sample(8.0, 250), Sample(10.0, 300)]
    first_end = 2.0 * 100 / 120
    assert best_pass(samples, 100) == pytest.approx(100 / min(6.0 - first_end, 4.0))


def test_a_run_that_ends_early_is_not_measured() -> None:
    with pytest.raises(RunFailedError, match="expected at least 2 passes of 100 examples, found 150 in all"):
        best_pass([Sample(0.0, 0), Sample(1.0, 150)], 100)


def test_the_images_of_a_class_have_its_bar(tmp_path: Path) -> None:
    count = write_images(tmp_path / "set", 3000 * 784 + 5)
    images, labels = (np.load(tmp_path / "set" / f"{name}_train.npy") for name in "xy")
    assert count == len(images) == len(labels) == 3000 and set(labels) == set(range(10))
    rows = (images[:, :, 10] == 250).argmax(axis=1)
    np.testing.assert_array_equal(rows, 2 + 2 * labels.astype(int))


@pytest.mark.slow
def test_a_small_set_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too small for a bar: the machine's other work counts more than the server's."""
    monkeypatch.setattr(stream, "write_images", lambda folder, size_bytes: write_images(folder, size_bytes // 16))
    found = stream.measure(DataSettings(rounds=1), lambda line: None)
    assert all(row["ratio"] > 0 for row in found.values())
    assert found["stream-memory"]["ratio"] < 1 and found["stream-bytes"]["ratio"] < 1
