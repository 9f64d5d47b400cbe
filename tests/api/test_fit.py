"""`adam.fit` on arrays in memory: real processes, a problem of a second, everything kept in the test's own folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, DamagedDataError, RunFailedError
from adamctl.kernels.step.network import Network
from adamctl.launch.run_folder import checkpoints
from adamctl.model.description import Model

CLASSES, FEATURES = 3, 6
NET = adam.Sequential([adam.Dense(8, activation="relu"), adam.Softmax(CLASSES)], input_shape=(FEATURES,))


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Three heaps of points; float64 and int64, as NumPy makes them."""
    random = np.random.default_rng(2)
    centres = 2 * random.standard_normal((CLASSES, FEATURES))
    labels, test_labels = np.arange(150) % CLASSES, np.arange(60) % CLASSES
    return (
        centres[labels] + 0.3 * random.standard_normal((150, FEATURES)),
        labels,
        centres[test_labels] + 0.3 * random.standard_normal((60, FEATURES)),
        test_labels,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> adam.Run:
    """One run for the tests below, with the kernels that start at once."""
    before = os.environ.get("ADAMCTL_KERNELS")
    os.environ["ADAMCTL_KERNELS"] = "numpy"
    try:
        return adam.fit(
            NET,
            arrays(),
            optimizer=adam.SGD(0.1),
            name="heaps",
            passes=2,
            batch=5,
            threads=1,
            runs=tmp_path_factory.mktemp("runs"),
            quiet=True,
            pass_fraction=1.0,
        )
    finally:
        os.environ.pop("ADAMCTL_KERNELS")
        if before is not None:
            os.environ["ADAMCTL_KERNELS"] = before


@pytest.mark.slow
def test_a_source_of_ones_own_is_trained_on(tmp_path: Path) -> None:
    x, y, test_x, test_y = arrays()
    names = np.array(["red", "green", "blue"])
    source = adam.Source(list(zip(x, names[y], strict=True)), lambda: [(test_x, names[test_y])])
    run = adam.fit(NET, source, optimizer=adam.SGD(0.1), passes=2, batch=5, threads=1, runs=tmp_path, quiet=True)
    assert run.result["test_top1"] > 0.9 and run.result["examples"] == 2 * 150


def test_a_run_learns_and_says_what_it_did(run: adam.Run) -> None:
    assert run.result["examples"] == 2 * 150
    assert run.result["test_top1"] > 0.9
    assert run.result["roles"] == {"controller": 1, "coordinator": 1, "ps": 1, "data": 1, "worker": 1}
    assert run.model is NET


def test_its_folder_is_where_it_was_asked_for(run: adam.Run) -> None:
    assert run.folder.parts[-2:] == ("heaps", "001")
    assert (run.folder / "summary.json").is_file() and (run.folder / "metrics.jsonl").is_file()
    assert checkpoints(run.folder)


def test_parameters_have_the_names_and_shapes_of_the_layout(run: adam.Run) -> None:
    shapes = {name: values.shape for name, values in run.parameters().items()}
    assert shapes == {
        "dense1.weight": (8, FEATURES),
        "dense1.bias": (8,),
        "softmax1.weight": (CLASSES, 8),
        "softmax1.bias": (CLASSES,),
    }
    assert all(values.dtype == np.float32 for values in run.parameters().values())


def test_predictions_agree_with_the_accuracy_that_was_reported(run: adam.Run) -> None:
    """The last checkpoint is what was evaluated last."""
    _, _, x_test, y_test = arrays()
    outputs = run.predict(x_test)
    assert outputs.shape == (60, CLASSES) and outputs.dtype == np.float32
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-5)
    assert (outputs.argmax(axis=1) == y_test).mean() == pytest.approx(run.result["test_top1"], abs=1.5 / 60)


def test_many_examples_are_predicted_a_part_at_a_time(run: adam.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are not laid out for all of them at once."""
    sizes: list[int] = []

    def network(model: Model, batch_max: int) -> Network:
        sizes.append(batch_max)
        return Network(model, batch_max)

    monkeypatch.setattr("adamctl.api.fit.Network", network)
    few = arrays()[2]
    outputs = run.predict(np.tile(few, (9, 1)))
    assert outputs.shape == (540, CLASSES) and outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, np.tile(run.predict(few), (9, 1)), rtol=1e-5)
    assert sizes == [256, 60]


def test_no_examples_have_no_predictions(run: adam.Run) -> None:
    assert run.predict(np.zeros((0, FEATURES))).shape == (0, CLASSES)


def test_examples_of_another_shape_are_refused(run: adam.Run) -> None:
    with pytest.raises(ValueError, match="images: expected"):
        run.predict(np.zeros((2, FEATURES + 1)))


def test_a_folder_without_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="holds no checkpoint"):
        adam.Run(tmp_path, {}, NET).parameters()


# --- what is refused, before anything is started ----------------------------------------------------------------------


def refused(folder: Path, data: Any = None, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        adam.fit(NET, arrays() if data is None else data, runs=folder / "runs", quiet=True, **options)
    assert error.value.exit_code == 2
    assert not (folder / "runs").exists(), "nothing was started"
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"passes": 0}, "train.passes"),
        ({"batch": 0}, "train.batch"),
        ({"batch": "many"}, "train.batch"),
        ({"workers": 0}, "cluster.workers"),
        ({"threads": "two"}, "cluster.threads"),
        ({"ps": -1}, "cluster.ps"),
        ({"seed": -1}, "seed"),
        ({"optimizer": adam.LBFGS(32)}, "optimizer.history"),
        ({"optimizer": adam.LBFGS(batch=151)}, "optimizer.batch"),
        ({"optimizer": adam.CG(), "consistency": "sync"}, "train.consistency"),
        ({"optimizer": adam.CG(), "ps": 0}, "cluster.ps"),
        ({"optimizer": adam.Optimizer("lbgfs")}, "optimizer.type"),
        ({"optimizer": adam.Optimizer("lbfgs", step=1.0)}, "optimizer.settings"),
        ({"name": "a/b"}, "name"),
        ({"target": 1.5}, "train.target"),
        ({"n_push": 0}, "train.n_push"),
        ({"protocol": "best"}, "train.protocol"),
        ({"evaluate_on": "validation"}, "train.evaluate_on"),
        ({"optimizer": adam.SGD(-0.1)}, "optimizer.lr"),
        ({"optimizer": adam.Momentum(0.1, 1.0)}, "optimizer.momentum"),
        ({"optimizer": adam.Adam(0.1, beta1=1.0)}, "optimizer.beta1"),
        ({"optimizer": adam.RMSProp(0.1, epsilon=0.0)}, "optimizer.epsilon"),
        ({"optimizer": adam.Adagrad(0.1, schedule=adam.Schedule("cosin"))}, "optimizer.schedule.type"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_by_its_key(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    assert key in refused(tmp_path, **options)


def test_several_wrong_values_are_all_named(tmp_path: Path) -> None:
    words = refused(tmp_path, passes=0, batch=0)
    assert "train.passes" in words and "train.batch" in words


def test_arrays_come_in_fours(tmp_path: Path) -> None:
    words = refused(tmp_path, data=arrays()[:2])
    assert "expected arrays (x_train, y_train, x_test, y_test); found 2" in words


def test_an_option_that_nobody_knows_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        adam.fit(NET, arrays(), learning_rate=0.1)


def test_what_is_wrong_with_a_model_is_said_when_it_is_made() -> None:
    for layers, words in (
        ([adam.Conv2D(4, 3), adam.Softmax(3)], r"model.layers\[0\] \(conv2d\): expected an image"),
        ([adam.Dense(4)], "cross_entropy needs softmax"),
        ([adam.Dense(0), adam.Softmax(3)], r"model.layers\[0\] \(dense\): units must be at least 1"),
        ([], "expected at least one layer"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            adam.Sequential(layers, input_shape=(FEATURES,))


def test_a_model_may_have_another_loss_and_come_from_lists() -> None:
    net = adam.Sequential([adam.Dense(4, "tanh")], [5], loss="squared_error")
    assert net == adam.Model((5,), (adam.Dense(4, "tanh"),), "squared_error")


def test_an_unknown_name_is_met_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Sequental'; it offers .*Sequential"):
        adam.Sequental  # noqa: B018
    assert set(adam.__all__) <= set(dir(adam))
    assert all(getattr(adam, name) is not None for name in adam.__all__)


def test_damaged_parameters_are_not_used(run: adam.Run, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run.folder, copied)
    for checkpoint in checkpoints(copied):
        for file in checkpoint.glob("*.adam"):
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    with pytest.raises(DamagedDataError):
        adam.Run(copied, {}, NET).parameters()


def test_a_folder_of_npy_files_is_known_by_their_names(tmp_path: Path) -> None:
    for name, values in zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True):
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises(ConfigurationError, match=r"model's input is \[5\], but the examples of .* are \[6\]"):
        adam.fit(adam.Sequential([adam.Softmax(CLASSES)], input_shape=(5,)), tmp_path, runs=tmp_path / "runs")


def test_a_tar_file_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(bytes(1024))
    with pytest.raises(ConfigurationError, match=r"x\.tar: expected members \.jpg, \.jpeg, \.png or \.npy, found none"):
        adam.fit(adam.Sequential([adam.Softmax(CLASSES)], input_shape=(4, 4, 3)), tmp_path / "x.tar", runs=tmp_path)


@pytest.mark.slow
def test_damaged_examples_are_skipped_and_counted(tmp_path: Path) -> None:
    x_train, y_train, x_test, y_test = arrays()
    x_train[[3, 70, 71]] = np.nan
    x_test[5] = np.inf
    np.savez(tmp_path / "a.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)  # type: ignore[arg-type]
    data = adam.DataConfig(format="npz", source=str(tmp_path / "a.npz"), scale="none", on_error="skip")
    keys: dict[str, Any] = {"passes": 2, "batch": 1, "threads": 1, "runs": tmp_path / "runs", "quiet": True}
    run = adam.fit(NET, data, optimizer=adam.SGD(0.05), pass_fraction=1.0, **keys)
    assert run.result["examples"] == 300 and run.result["skipped"] == 6 and run.result["evaluation_skipped"] == 1
    assert run.result["test_top1"] > 0.8
    x_train[:] = np.nan
    np.savez(tmp_path / "a.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)  # type: ignore[arg-type]
    with pytest.raises(RunFailedError, match="every example of pass 1 is damaged"):
        adam.fit(NET, data, optimizer=adam.SGD(0.05), **keys)


def test_labels_beyond_the_classes_are_refused_before_anything_starts(tmp_path: Path) -> None:
    x_train, y_train, x_test, y_test = arrays()
    with pytest.raises(ConfigurationError, match=f"has label {CLASSES}, .* last layer has {CLASSES} units"):
        adam.fit(NET, (x_train, y_train + (y_train == 2), x_test, y_test), runs=tmp_path, quiet=True, threads=1)


def test_a_run_that_fails_tells_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")
    with pytest.raises(RunFailedError, match="no longer finite"):
        adam.fit(NET, arrays(), optimizer=adam.SGD(1e38), runs=tmp_path, quiet=True, threads=1)


def test_a_replica_of_two_partitions_is_fitted(tmp_path: Path) -> None:
    cuts = {"dense1": adam.Cut("units", at=[2])}
    fitted = adam.fit(NET, arrays(), workers=2, partitions=2, cuts=cuts, runs=tmp_path, quiet=True, threads=1)
    assert fitted.result["best_test_top1"] > 1 / CLASSES


def test_cuts_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"partition\.dense1: expected 1 boundaries"):
        adam.fit(NET, arrays(), workers=2, partitions=2, cuts={"dense1": adam.Cut("units", at=())}, runs=tmp_path)
    assert list(tmp_path.iterdir()) == []
