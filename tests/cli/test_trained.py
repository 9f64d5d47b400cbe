"""`eval` and `predict` from a checkpoint on disk, without any role."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import adamctl as adam
from adamctl.cli.main import application
from adamctl.config.data import DataConfig, FeaturesConfig
from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.launch.prediction.processes import Processes, open_forward
from adamctl.launch.run_folder import create_run_folder
from adamctl.launch.trained import load_trained, open_data
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.manifest_bytes import FORMAT_VERSION, encode_manifest
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage, ShardRecord
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from tests.roles.data.speech.sounds import RATE_HZ, wav_bytes, write_recordings
from tests.roles.manifests_for_tests import change_manifest

SIDE, CLASSES = 4, 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of a model that says which quarter of a picture is the brightest, with its data."""
    quarters = np.zeros((CLASSES, SIDE, SIDE, 1), np.uint8)
    for label in range(CLASSES):
        top, left = divmod(label, 2)
        quarters[label, 2 * top : 2 * top + 2, 2 * left : 2 * left + 2] = 255
    labels = np.arange(CLASSES)
    source = tmp_path / "quarters.npz"
    np.savez(source, x_train=quarters, y_train=labels, x_test=quarters[:3], y_test=np.array([0, 1, 3]))
    experiment = Experiment(
        name="quarters",
        model=Model((SIDE, SIDE, 1), (Softmax(CLASSES),)),
        data=DataConfig(format="npz", source=str(source)),
    )
    folder = create_run_folder(tmp_path / "runs", experiment.name)
    (folder / "experiment.toml").touch()
    weights = quarters.reshape(CLASSES, -1).astype(np.float32) / 255
    write_checkpoint(folder / "checkpoints" / "000001", experiment, weights)
    return folder


def write_checkpoint(folder: Path, experiment: Experiment, weights: np.ndarray) -> None:
    layout = build_layout(experiment.model, 1)
    descriptor = FileDescriptor("quarters", "ps-1", layout.hash, "sgd", (), layout.tensors)
    writer = CheckpointWriter(folder, "shards-ps-1.adam", descriptor)
    values = (weights, np.zeros(len(weights), np.float32))
    for shard in layout.shards:
        part = values[shard.tensor][shard.row_start : shard.row_stop].ravel()
        record = ShardRecord(shard.index, shard.tensor, shard.row_start, shard.row_stop, 1, 0, 0, MemoryRecord())
        writer.add(ShardImage(record, part, ()))
    file = writer.finish()
    (folder / file.temporary_name).rename(folder / file.name)
    entry = {"name": file.name, "size_bytes": file.size_bytes, "checksum": file.checksum, "shards": list(file.shards)}
    manifest = {"format_version": FORMAT_VERSION, "files": [entry], "experiment": experiment}
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments))


def test_eval_on_a_split(run: Path) -> None:
    result = json.loads(invoke("eval", str(run), "--json").stdout)
    assert (result["split"], result["examples"], result["correct"]) == ("test", 3, 2)
    assert result["checkpoint"] == str(run / "checkpoints" / "000001")
    by_name = ("eval", "quarters", "--run-dir", str(run.parents[1]), "--split", "train", "--json")
    assert json.loads(invoke(*by_name).stdout)["top1"] == 1.0


def test_eval_for_people(run: Path) -> None:
    assert "66.67%" in invoke("eval", str(run / "checkpoints" / "000001")).stdout


def test_eval_with_the_confusion_matrix(run: Path) -> None:
    assert "confusion" not in json.loads(invoke("eval", str(run), "--json").stdout)
    result = json.loads(invoke("eval", str(run), "--confusion", "--json").stdout)
    assert result["confusion"]["counts"] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    rates = [(one["class"], one["precision"], one["recall"]) for one in result["confusion"]["classes"]]
    assert rates == [("0", 1.0, 1.0), ("1", 1.0, 1.0), ("2", 0.0, None), ("3", None, 0.0)]
    shown = invoke("eval", str(run), "--confusion").stdout
    assert "label \\ predicted" in shown and "precision" in shown


def test_eval_with_a_picture_of_the_confusion_matrix(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = invoke("eval", str(run), "--confusion-picture", str(tmp_path / "a.png"), "--json")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "confusion" not in json.loads(found.stdout) and f"wrote {tmp_path / 'a.png'}" in found.stderr
    assert invoke("eval", str(run), "--confusion-picture", str(tmp_path / "a.txt")).exit_code == 2


def test_eval_of_five_classes_or_fewer_has_no_top5(run: Path) -> None:
    assert json.loads(invoke("eval", str(run), "--json").stdout)["top5"] is None
    assert "top-5" not in invoke("eval", str(run)).stdout


def of_seven_classes(tmp_path: Path, model: Model) -> Path:
    """Returns a checkpoint of a network whose outputs fall with the number of the class; each class has an example."""
    source = tmp_path / "seven.npz"
    ones, labels = np.ones((7, 1), np.float32), np.arange(7)
    np.savez(source, x_train=ones, y_train=labels, x_test=ones, y_test=labels)
    experiment = Experiment(name="seven", model=model, data=DataConfig(format="npz", source=str(source)))
    folder = tmp_path / "checkpoints" / "000001"
    write_checkpoint(folder, experiment, -np.arange(7, dtype=np.float32)[:, None])
    return folder


def test_top5_counts_labels_among_the_five_largest(tmp_path: Path) -> None:
    folder = of_seven_classes(tmp_path, Model((1,), (Softmax(7),)))
    result = json.loads(invoke("eval", str(folder), "--json").stdout)
    assert (result["top1"], result["top5"]) == (1 / 7, 5 / 7)
    assert "71.43%" in invoke("eval", str(folder)).stdout


def test_with_a_loss_of_ones_own_its_metric_stands_in_place_of_top1(tmp_path: Path) -> None:
    folder = of_seven_classes(tmp_path, Model((1,), (Dense(7),), "tests.losses_for_tests:Margin"))
    result = json.loads(invoke("eval", str(folder), "--json").stdout)
    assert (result["top5"], result["metric"], result["metric_value"]) == (5 / 7, "kept", 1 / 7)
    assert result["correct"] is result["top1"] is None
    assert "correct" not in invoke("eval", str(folder)).stdout


def test_eval_on_a_split_without_examples(run: Path) -> None:
    assert isinstance(invoke("eval", str(run), "--split", "validation").exception, ConfigurationError)


def test_predict_of_pictures_of_any_size(run: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((40, 40), np.uint8)
    pixels[:20, 20:] = 255
    image.fromarray(pixels).save(tmp_path / "upper_right.png")
    picture = str(tmp_path / "upper_right.png")
    result = json.loads(invoke("predict", str(run), picture, "--top", "2", "--json").stdout)
    (prediction,) = result["predictions"]
    assert prediction["image"] == picture
    assert prediction["classes"][0]["class"] == "1"
    assert len(prediction["classes"]) == 2
    assert "1." in invoke("predict", str(run), picture).stdout


def test_predict_of_a_folder_of_pictures(run: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in range(CLASSES):
        pixels = np.zeros((8, 8), np.uint8)
        top, left = divmod(label, 2)
        pixels[4 * top : 4 * top + 4, 4 * left : 4 * left + 4] = 255
        (tmp_path / "new" / "deeper").mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(tmp_path / "new" / ("deeper" if label % 2 else "") / f"{label}.PNG")
    result = json.loads(invoke("predict", str(run), str(tmp_path / "new"), "--json").stdout)
    assert {Path(one["image"]).stem: one["classes"][0]["class"] for one in result["predictions"]} == {
        str(label): str(label) for label in range(CLASSES)
    }
    (tmp_path / "empty").mkdir()
    assert "no images in this folder" in str(invoke("predict", str(run), str(tmp_path / "empty")).exception)


def test_predict_names_a_picture_that_is_none(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "text.png").write_text("not a picture")
    error = invoke("predict", str(run), str(tmp_path / "text.png")).exception
    assert isinstance(error, DamagedDataError)
    assert "text.png" in str(error)


@pytest.mark.parametrize("flags", [(), ("--csv",), ("--json",)], ids=" ".join)
def test_predict_leaves_damaged_pictures_out_and_tells_of_them_at_the_end(
    run: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = [str(tmp_path / name) for name in ("a.png", "bad.png", "b.png", "worse.png")]
    for path in pictures:
        image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    for path in pictures[1::2]:
        Path(path).write_text("not a picture")
    result = invoke("predict", str(run), *pictures, *flags)
    assert isinstance(result.exception, DamagedDataError) and "worse.png" in str(result.exception)
    assert "bad.png" in result.stderr if flags != ("--json",) else "bad.png" in json.loads(result.stdout)["error"]
    if flags == ("--json",):
        assert [one["image"] for one in json.loads(result.stdout)["predictions"]] == pictures[::2]
    else:
        words = [line.replace(",", " ").split()[0] for line in result.stdout.splitlines()]
        assert words == ["image", *pictures[::2]]
    nothing = invoke("predict", str(run), pictures[1], *flags)
    assert nothing.exception is not None and ("image" not in nothing.stdout.split() or flags == ("--json",))


def test_names_of_classes_are_those_of_the_checkpoint(run: Path, tmp_path: Path) -> None:
    """Also where the data have gone, and if they have other names now."""
    pixels = np.zeros((1, SIDE, SIDE, 1), np.uint8)
    pixels[0, :2, 2:] = 255
    np.savez(tmp_path / "new.npz", pixels)
    change_manifest(run / "checkpoints" / "000001", {"classes": ["nw", "ne", "sw", "se"]})
    for _ in range(2):
        found = json.loads(invoke("predict", str(run), str(tmp_path / "new.npz"), "--json").stdout)
        assert found["predictions"][0]["classes"][0]["class"] == "ne"
        (tmp_path / "quarters.npz").unlink(missing_ok=True)


def test_a_flipped_bit_is_damage(run: Path) -> None:
    file = run / "checkpoints" / "000001" / "shards-ps-1.adam"
    content = bytearray(file.read_bytes())
    content[-60] ^= 4
    file.write_bytes(content)
    assert isinstance(invoke("eval", str(run)).exception, DamagedDataError)


def test_a_run_without_a_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "000001" / "manifest.json").unlink()
    error = invoke("eval", str(run)).exception
    assert isinstance(error, ConfigurationError)
    assert "no finished checkpoint" in str(error)


def test_predict_of_a_picture_that_is_not_there(run: Path, tmp_path: Path) -> None:
    error = invoke("predict", str(run), str(tmp_path / "none.png")).exception
    assert isinstance(error, ConfigurationError) and "none.png: no such file or folder; expected images" in str(error)


# --- sound ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    """A finished run of a model that hears which half of the spectrum is the louder, with its recordings."""
    for name in ("0_a_0", "0_a_1", "1_b_0", "1_b_1", "0_b_1"):
        write_recordings(tmp_path / "set", {f"{name}.wav": 1600})
        (tmp_path / "set" / f"{name}.wav").write_bytes(wav_bytes(tone(200 if name[0] == "0" else 3000)))
    (tmp_path / "set" / "0_b_1.wav").write_bytes(wav_bytes(tone(3000)))  # it will be heard as the other class
    data = DataConfig(
        format="audio",
        source=str(tmp_path / "set"),
        class_from="name",
        test_files="*_1.wav",
        scale="standard",
        features=FeaturesConfig(bands=4, context=0, center=False),
    )
    folder = create_run_folder(tmp_path / "runs", "heard")
    (folder / "experiment.toml").touch()
    weights = 0.3 * np.array([[1, -1], [1, -1], [-1, 1], [-1, 1]], np.float32)
    experiment = Experiment(name="heard", model=Model((4,), (Softmax(2),)), data=data)
    write_checkpoint(folder / "checkpoints" / "000001", experiment, weights.T.copy())
    return folder


def tone(hertz: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz / RATE_HZ * np.arange(1600))).astype(np.float32)


def test_eval_measures_recordings_too(heard: Path) -> None:
    result = json.loads(invoke("eval", str(heard), "--json").stdout)
    assert (result["examples"], result["correct"]) == (54, 36)
    assert result["by_group"] == {"groups": 3, "correct": 2, "top1": 2 / 3}
    shown = invoke("eval", str(heard)).stdout
    assert "groups" in shown and "by group" in shown
    assert json.loads(invoke("eval", str(heard), "--split", "train", "--json").stdout)["by_group"]["groups"] == 2


def test_outputs_that_are_no_probabilities_have_no_groups(heard: Path, tmp_path: Path) -> None:
    """A loss of one's own on labels: logarithms of its outputs mean nothing."""
    model = Model((4,), (Dense(2),), "tests.losses_for_tests:Margin")
    experiment = msgspec.structs.replace(load_trained(str(heard), tmp_path).experiment, model=model)
    write_checkpoint(tmp_path / "checkpoints" / "000001", experiment, np.ones((2, 4), np.float32))
    assert json.loads(invoke("eval", str(tmp_path / "checkpoints" / "000001"), "--json").stdout)["by_group"] is None


def test_eval_of_examples_without_groups_says_none(run: Path) -> None:
    assert json.loads(invoke("eval", str(run), "--json").stdout)["by_group"] is None
    assert "by group" not in invoke("eval", str(run)).stdout


def test_predict_of_recordings(heard: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "high.wav").write_bytes(wav_bytes(tone(2500)))
    (tmp_path / "new" / "low.wav").write_bytes(wav_bytes(tone(300)))
    found = json.loads(invoke("predict", str(heard), str(tmp_path / "new"), "--json").stdout)["predictions"]
    assert [(Path(one["image"]).name, one["classes"][0]["class"]) for one in found] == [
        ("high.wav", "1"),
        ("low.wav", "0"),
    ]
    assert all(abs(sum(each["score"] for each in one["classes"]) - 1) < 1e-5 for one in found)


def test_a_score_is_the_geometric_mean_over_frames_as_in_training(heard: Path, tmp_path: Path) -> None:
    trained = load_trained(str(heard), tmp_path)
    data = open_data(trained.experiment, trained.experiment.data)
    count = data.examples["train"]
    values, labels = np.empty((count, 4), np.float32), np.empty(count, np.int32)
    data.gather(Range("train", FILE_ORDER, 0, count), values, labels)
    data.scaling.apply(values)
    (outputs,) = open_forward(trained, Processes()).outputs([values[: count // 2]])
    means = np.exp(np.log(outputs).mean(axis=0))  # the first of two recordings
    found = json.loads(invoke("predict", str(heard), str(tmp_path / "set" / "0_a_0.wav"), "--json").stdout)
    scores = {one["class"]: one["score"] for one in found["predictions"][0]["classes"]}
    np.testing.assert_allclose([scores["0"], scores["1"]], means / means.sum(), atol=2e-6)
    assert 1e-4 < scores["1"] < 0.4


def test_predict_of_recordings_of_another_rate_or_kind_is_refused(heard: Path, tmp_path: Path) -> None:
    (tmp_path / "fast.wav").write_bytes(wav_bytes(tone(300), rate_hz=16000))
    failed = invoke("predict", str(heard), str(tmp_path / "fast.wav")).exception
    assert isinstance(failed, ConfigurationError) and "expected 8000 samples a second" in str(failed)
    (tmp_path / "no.wav").write_bytes(b"RIFF")
    (tmp_path / "low.wav").write_bytes(wav_bytes(tone(300)))
    result = invoke("predict", str(heard), str(tmp_path / "no.wav"), str(tmp_path / "low.wav"))
    assert isinstance(result.exception, DamagedDataError) and "no.wav" in str(result.exception)
    assert str(tmp_path / "low.wav") in result.stdout
    (tmp_path / "empty").mkdir()
    assert "no WAV or FLAC files" in str(invoke("predict", str(heard), str(tmp_path / "empty")).exception)


def test_predictions_of_several_processes_are_those_of_one(run: Path, tmp_path: Path) -> None:
    """Rows in the order of the examples; `eval` in one process of several threads, Python in partitions."""
    examples = np.random.default_rng(5).integers(0, 256, (600, SIDE, SIDE, 1), np.uint8)
    np.savez(tmp_path / "new.npz", x=examples)
    alone, together = (
        list(csv.reader(invoke("predict", str(run), str(tmp_path / "new.npz"), "--csv", *more).stdout.splitlines()))
        for more in ([], ["--partitions", "2"])
    )
    assert alone[0] == together[0] and len(alone) == len(together) == 601
    for one, other in zip(alone[1:], together[1:], strict=True):
        assert one[0] == other[0]
        np.testing.assert_allclose([float(x) for x in one[2::2]], [float(x) for x in other[2::2]], atol=2e-5)
    found = [json.loads(invoke("eval", str(run), "--json", *more).stdout) for more in ([], ["--threads", "2"])]
    assert found[0]["loss"] == pytest.approx(found[1].pop("loss"), rel=1e-5)
    assert found[1].items() <= found[0].items()
    with adam.load(run, partitions=2) as model:
        parts = [examples[:300], examples[300:300], examples[300:]]
        outputs = np.concatenate(list(model.predict_each(parts)))
        np.testing.assert_allclose(outputs, adam.load(run).predict(examples), atol=2e-5)
        np.testing.assert_array_equal(model.parameters()["softmax1.bias"], np.zeros(CLASSES))


@pytest.mark.parametrize("flags", [[], ["--partitions", "2"]])
def test_csv_of_a_damaged_checkpoint_is_an_error_and_no_header(run: Path, tmp_path: Path, flags: list[str]) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((1, SIDE, SIDE, 1)))
    predict = ("predict", str(run), str(tmp_path / "new.npz"), "--csv", *flags)
    assert invoke(*predict).stdout.startswith("image,class_1,score_1,")
    file = run / "checkpoints" / "000001" / "shards-ps-1.adam"
    content = bytearray(file.read_bytes())
    content[-60] ^= 4
    file.write_bytes(content)
    found = invoke(*predict)
    assert isinstance(found.exception, DamagedDataError) and found.stdout == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--partitions", "0"], "partitions: expected at least 1; found 0"),
        (["--partitions", "5"], "the most that it can be cut into is 4"),
        (["--threads", "0"], "threads: expected at least 1; found 0"),
        (["--memory", "much"], "memory: expected a size above 0"),
        (["--memory", "1MB"], "does not fit 1 process of 0.00 GB each: the largest part needs 0.21 GB"),
    ],
)
def test_processes_that_cannot_be_are_refused(run: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((1, SIDE, SIDE, 1)))
    for command in (["predict", str(run), str(tmp_path / "new.npz")], ["eval", str(run)]):
        failure = invoke(*command, *flags).exception
        assert isinstance(failure, ConfigurationError) and message in str(failure)
