"""Numbers to come close to, in place of classes: read, served, delivered, and refused where a loss needs classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.data.client.batches import batch_over
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.data.core import SKIPPED
from adamctl.roles.data.describe.inspect import inspect
from adamctl.roles.data.describe.look import Needs, look
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.readers import open_source, peek_source
from adamctl.roles.data.readers.plugins import check_source
from adamctl.roles.data.readers.plugins import find as find_reader
from adamctl.roles.data.readers.source import TableSource
from adamctl.roles.data.readers.targets import check_answers, target_count, targets_of
from adamctl.roles.data.server import DataServer
from adamctl.roles.data.store import DataStore
from adamctl.wire.messages import Hello
from tests.roles.data.orders import whole_pass

IMAGES = np.arange(12 * 4, dtype=np.uint8).reshape(12, 2, 2)
TARGETS = np.random.default_rng(4).standard_normal((12, 3))

Save = Callable[..., DataConfig]


def save_npz(folder: Path, **arrays: Any) -> DataConfig:
    np.savez(folder / "made.npz", **arrays)
    return DataConfig(format="npz", source=str(folder / "made.npz"), scale="none")


def save_npy(folder: Path, **arrays: Any) -> DataConfig:
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return DataConfig(format="npy", source=str(folder), scale="none")


SAVES = pytest.mark.parametrize("save", [save_npz, save_npy])


@SAVES
def test_targets_are_read_in_place_of_labels(tmp_path: Path, save: Save) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=TARGETS, x_test=IMAGES[:2], targets_test=TARGETS[:2])
    source = open_source(config, Path(config.source), (2, 2, 1))
    assert source.classes == () and target_count(source) == 3 and not source.labels("train").any()
    for split, expected in (("train", TARGETS), ("test", TARGETS[:2])):
        found = targets_of(source, split)  # type: ignore[arg-type]
        assert found is not None and found.dtype == np.float32
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    peeked = peek_source(config, Path(config.source), (2, 2, 1), 5, 1.0)
    assert target_count(peeked) == 3 and peeked.classes == () and len(peeked.labels("test")) == 2
    check_source(find_reader(config.format), source, (2, 2, 1))


@SAVES
def test_one_number_per_example_is_a_target_and_the_test_part_may_be_missing(tmp_path: Path, save: Save) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=np.arange(12))
    source = open_source(config, Path(config.source), None)
    assert target_count(source) == 1 and targets_of(source, "test").shape == (0, 1)  # type: ignore[union-attr]


def test_archives_have_other_names_for_them_too(tmp_path: Path) -> None:
    config = save_npz(tmp_path, images=IMAGES, targets=TARGETS, test_images=IMAGES[:1], test_targets=TARGETS[:1])
    assert target_count(open_source(config, Path(config.source), None)) == 3


@SAVES
@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (TARGETS[:5], "12 examples"),
        (TARGETS[:, None], r"\[12, 1, 3\]"),
        (TARGETS[:, :0], "expected 1 to"),
        (TARGETS.astype(complex), "real numbers"),
        (np.full((12, 1), np.nan), "nan in example 0"),
    ],
)
def test_targets_that_are_none_are_damage(tmp_path: Path, save: Save, targets: Any, said: str) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=targets)
    for read in (lambda path: open_source(config, path, None), lambda path: peek_source(config, path, (4,), 5, 1.0)):
        with pytest.raises(DamagedDataError, match=said) as caught:
            read(Path(config.source))
        assert "targets_train" in str(caught.value)


@SAVES
def test_targets_of_the_test_part_that_are_longer_or_shorter_are_damage(tmp_path: Path, save: Save) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=TARGETS, x_test=IMAGES, targets_test=TARGETS[:, :2])
    with pytest.raises(DamagedDataError, match="found 3 for training and 2 for test"):
        open_source(config, Path(config.source), None)


@SAVES
def test_labels_beside_targets_are_refused(tmp_path: Path, save: Save) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=TARGETS, y_train=np.arange(12) % 2)
    with pytest.raises(ConfigurationError, match="y_train"):
        open_source(config, Path(config.source), None)


def test_targets_of_another_package_are_checked() -> None:
    labels = np.zeros(12, np.int32)

    def source(targets: Any) -> TableSource:
        made = TableSource(
            "x", {"train": (IMAGES, labels), "test": (IMAGES[:0], labels[:0])}, value_max=1.0, stored_bytes=0,
            input_shape=None, origin="x", targets=targets,
        )  # fmt: skip
        return made

    reader, good = find_reader("npz"), TARGETS.astype(np.float32)
    check_source(reader, source({"train": good, "test": good[:0]}), None)
    for bad, said in (
        ({"train": TARGETS, "test": good[:0]}, "float32"),
        ({"train": good[:3], "test": good[:0]}, r"\[12, 3\]"),
        ({"train": good, "test": good[:0, :2]}, "targets of test"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            check_source(reader, source(bad), None)
    both = source({"train": good, "test": good[:0]})
    both.classes = ("one",)
    with pytest.raises(ConfigurationError, match="found both"):
        check_source(reader, both, None)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
async def test_a_batch_has_the_targets_of_its_examples(tmp_path: Path, kind: type) -> None:
    config = save_npz(tmp_path, x_train=IMAGES.astype(kind), targets_train=TARGETS)
    network, store = MemoryNetwork(Random(1)), DataStore(threads=1, memory_bytes=1 << 30)
    server = DataServer(store, asyncio.get_running_loop(), [str(tmp_path)])
    listening = await network.serve(["memory://data"], Hello(1, 1, (), "data", "data", 1), server.handle)
    greeting = Hello(1, 1, (), "worker", "worker", 1)
    client = DataClient([await network.connect("memory://data", greeting, deadline_s=20)])
    data = await client.open(config, (2, 2, 1), 7)
    assert data.targets == 3 and data.classes == ()
    order = whole_pass(store.open(config, (2, 2, 1), 7), "train", 1)[2:9]
    into = np.empty((7, 2, 2, 1), np.float32), np.empty((7, 3), np.float32)
    for batch in (await client.read(data, "train", 1, 2, 9), await client.read(data, "train", 1, 2, 9, into)):
        np.testing.assert_array_equal(batch.images[..., 0], IMAGES[order])
        assert batch.targets is not None and len(batch.labels) == 0
        np.testing.assert_array_equal(batch.targets, TARGETS[order].astype(np.float32))
        batch.release()
    config = DataConfig(
        format="npz", source=save_npz(tmp_path, x_train=IMAGES.astype(kind), y_train=np.arange(12)).source
    )
    own = await client.open(msgspec.structs.replace(config, targets="inputs"), (2, 2, 1), 7)
    batch = await client.read(own, "train", 1, 2, 9)
    assert own.targets == 0 and len(batch.labels) == 7
    np.testing.assert_array_equal(batch.answers, batch.images.reshape(7, 4))
    batch.release()
    with pytest.raises(ValueError, match=r"\[7, 3\]"):
        await client.read(data, "train", 1, 2, 9, (into[0], np.empty(7, np.int32)))
    await client.close()
    await listening.close()
    await asyncio.to_thread(server.close)


def test_what_servers_have_left_out_is_known_by_labels_where_targets_are_inputs() -> None:
    """Its values may be any; with targets of their own these are NaN."""
    images, labels = np.ones((3, 2, 2, 1), np.float32), np.array([0, SKIPPED, 2], np.int32)
    assert batch_over((images, labels), ExampleForm(4, targets_are_inputs=True)).are_there.tolist() == [1, 0, 1]
    assert batch_over((images, labels), ExampleForm(4)).are_there.tolist() == [1, 0, 1]
    own = np.array([[1, 2], [np.nan, np.nan], [0, 0]], np.float32)
    assert batch_over((images, own), ExampleForm(4, targets=2)).are_there.tolist() == [1, 0, 1]


@SAVES
def test_a_loss_that_needs_classes_is_refused_before_anything_starts(tmp_path: Path, save: Save) -> None:
    config = save(tmp_path, x_train=IMAGES, targets_train=TARGETS)
    for full in (False, True):
        with pytest.raises(ConfigurationError, match=r"targets, 3 numbers each.*trains on classes: give labels"):
            look(config, Needs((2, 2, 1), 3, 4, 0), full=full)


@pytest.mark.parametrize(
    ("targets", "wanted", "takes", "inputs", "said"),
    [
        (3, 3, False, 0, 'end the model with a dense layer and set model.loss = "mean_squared_error"'),
        (0, 3, True, 0, "have labels, .* give these, numbers .*; or end the model with softmax"),
        (3, 2, True, 0, "need targets of 2 numbers, but targets of x have 3 numbers each; set the units .* to 3"),
        (0, 2, True, 16, "need targets of 2 numbers, but targets of x have 16 numbers each"),
        (3, 16, True, 16, 'data.targets = "inputs" does not use them: leave it out'),
    ],
)
def test_answers_that_do_not_fit_the_loss_are_refused_with_what_to_do(
    targets: int, wanted: int, takes: bool, inputs: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_answers(targets, wanted, takes, "x", inputs)
    check_answers(0, 3, False, "x")
    check_answers(3, 3, True, "x")
    check_answers(0, 16, True, "x", 16)


def test_train_ends_with_exit_code_2(tmp_path: Path) -> None:
    config = save_npz(tmp_path, x_train=IMAGES, targets_train=TARGETS)
    experiment = tmp_path / "made.toml"
    experiment.write_text(
        f'name = "made"\n[data]\nformat = "npz"\nsource = "{config.source}"\n[model]\ninput = [2, 2, 1]\n'
        '[[model.layers]]\ntype = "softmax"\nunits = 3\n[train]\nbatch = 4\n'
    )
    ended = CliRunner().invoke(application, ["train", str(experiment), "--run-dir", str(tmp_path / "run")])
    assert isinstance(ended.exception, ConfigurationError) and ended.exception.exit_code == 2, ended.output
    assert "trains on classes" in str(ended.exception) and not (tmp_path / "run").exists()


def test_they_are_described(tmp_path: Path) -> None:
    config = save_npz(tmp_path, x_train=IMAGES, targets_train=np.arange(12.0))
    found = inspect(config)
    assert found["targets"] == 1 and found["classes"] == []
    assert found["splits"]["train"]["targets"] == {"min": 0.0, "max": 11.0}
    told = CliRunner().invoke(application, ["data", "inspect", config.source])
    assert told.exit_code == 0 and "targets of 1 number(s) in place of classes: train 0 to 11" in told.output
