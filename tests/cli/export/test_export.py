"""`adamctl export` and `import`: there and back again, PyTorch's order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from adamctl.cli.checkpoint.damage import find_damage
from adamctl.cli.export.torch_model import from_torch, module_code, to_torch, torch_names
from adamctl.cli.main import application
from adamctl.config.resolved import write_resolved
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.kernels.step.network import Network
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
)
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.writer import check_model, check_resumable
from adamctl.roles.ps.checkpoint_files import ShardFile, load_parameters
from tests.cli.checkpoints_for_tests import SMALL, flip, make_experiment, make_run, values_of

FILES = {"safetensors": "out.safetensors", "npz": "out.npz", "torch": "out.pt"}
MODELS = {
    "small": SMALL,
    "dense alone": Model((7,), (Dense(5, "sigmoid"), Softmax(3))),
    "dense on an image": Model((4, 5, 3), (Dense(6, "relu"), Dropout(0.5), Softmax(3))),
    "padding": Model(
        (9, 8, 2),
        (
            Conv2D(4, (3, 5), padding="same", activation="tanh"),
            Conv2D(6, 4, stride=2, padding="same", groups=2),
            MaxPool2D(2, stride=1),
            Softmax(3),
        ),
    ),
    "regression": Model((4, 5, 3), (Conv2D(4, 2), Dense(6, "tanh"), Dense(3)), "mean_squared_error"),
    "pools": Model((8, 8, 4), (L2Pool2D(3, stride=2), Conv2D(4, 2, stride=(1, 2)), Logistic(5)), "logistic"),
}


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(application, [*map(str, arguments)], standalone_mode=False)


def values(*arguments: str | Path) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exception is None, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def needs(kind: str) -> None:
    if kind != "npz":
        pytest.importorskip(kind)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """The experiment's file, on another number of servers."""
    return write_resolved(make_experiment(servers=3), tmp_path)


@pytest.mark.parametrize("order", ["adamctl", "torch"])
@pytest.mark.parametrize("kind", list(FILES))
def test_there_and_back_again(tmp_path: Path, toml: Path, kind: str, order: str) -> None:
    needs(kind)
    run = make_run(tmp_path)
    file = tmp_path / FILES[kind]
    written = values("export", run, file, "--to", kind, "--order", order)
    assert (written["format"], written["order"], len(written["tensors"])) == (kind, order, 6)
    made = values("import", file, tmp_path / "imported", "--model", toml)
    assert (made["order"], made["tensors"]) == (order, 6)
    assert find_damage(tmp_path / "imported") == []
    found = load_parameters(tmp_path / "imported")
    for name, array in load_parameters(manifest.finished(run / "checkpoints")[-1]).items():
        np.testing.assert_array_equal(found[name], array)
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


def test_npz_holds_arrays_by_name_in_documented_shapes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    text = invoke("export", run, tmp_path / "out.npz").stdout
    assert "npz in the order of adamctl" in text and "nn.Sequential" not in text
    with np.load(tmp_path / "out.npz") as opened:
        found = {name: opened[name] for name in opened.files}
    expected = values_of(make_experiment())
    assert list(found) == list(expected) and found["conv2d1.weight"].shape == (3, 3, 3, 2)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_pytorchs_order_without_pytorch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    result = invoke("export", run, tmp_path / "out.npz", "--order", "torch")
    assert "nn.Conv2d(2, 3, (3, 3)),  # 0" in result.stdout and "nn.Flatten()" in result.stdout
    with np.load(tmp_path / "out.npz") as opened:
        assert sorted(opened.files) == sorted(torch_names(SMALL).values())
        assert opened["0.weight"].shape == (3, 2, 3, 3)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_orders_are_each_others_inverse(model: Model) -> None:
    ours = values_of(make_experiment(model))
    again = from_torch(model, to_torch(model, ours))
    assert again.keys() == ours.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_pytorch_loads_the_state_dict_and_predicts_the_same(tmp_path: Path, model: Model) -> None:
    torch = pytest.importorskip("torch")
    experiment = make_experiment(model)
    run = make_run(tmp_path, 1, experiment)
    exported = values("export", run, tmp_path / "out.pt")
    module = eval(exported["module"], {"nn": torch.nn})
    module.load_state_dict(torch.load(tmp_path / "out.pt", weights_only=True))
    images = np.random.default_rng(5).standard_normal((6, *model.input)).astype(np.float32)
    network = Network(model, 6)
    flat = np.zeros(network.flat_size, np.float32)
    stored = load_parameters(manifest.finished(run / "checkpoints")[-1])
    for tensor, view in zip(network.tensors, network.views(flat), strict=True):
        view[...] = stored[tensor.name]
    ours = network.predict(network.context(training=False), flat, images)
    first = images.transpose(0, 3, 1, 2) if images.ndim == 4 else images
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(np.ascontiguousarray(first)))
        kinds = {Softmax: lambda found: torch.softmax(found, 1), Logistic: torch.sigmoid}
        last = kinds.get(type(model.layers[-1]), lambda found: found)(logits)
    np.testing.assert_allclose(last.numpy(), ours, rtol=2e-4, atol=2e-6)


def test_a_layer_that_pytorch_has_not(tmp_path: Path) -> None:
    experiment = make_experiment(Model((6, 6, 1), (Local2D(2, 3), Softmax(3))))
    run = make_run(tmp_path, 1, experiment)
    error = invoke("export", run, tmp_path / "out.npz", "--order", "torch").exception
    assert isinstance(error, ConfigurationError) and "local2d" in str(error)
    assert invoke("export", run, tmp_path / "out.npz").exception is None


def test_without_pytorch_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    error = invoke("export", make_run(tmp_path), tmp_path / "out.pt").exception
    assert isinstance(error, ConfigurationError) and "--to safetensors --order torch" in str(error)
    assert list(tmp_path.glob("*out.pt*")) == []


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = manifest.finished(run / "checkpoints")[-1] / "shards-ps-1.adam"
    flip(path, ShardFile(path).shards[0].offset)
    error = invoke("export", run, tmp_path / "out.npz").exception
    assert isinstance(error, DamagedDataError) and error.exit_code == 5 and "shards-ps-1.adam" in str(error)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("dense1.bias"), "dense1.bias: expected [5]; found nothing"),
        (lambda v: v.update(extra=np.ones(1)), "extra: the model has no such parameters"),
        (lambda v: v.update({"dense1.bias": np.ones(6)}), "dense1.bias: expected [5]; found [6]"),
        (lambda v: v.update({"dense1.bias": np.full(5, np.nan)}), "dense1.bias: expected finite values"),
        (lambda v: v.update({"dense1.bias": np.full(5, "a")}), "dense1.bias: expected numbers"),
    ],
)
def test_import_names_every_array_that_does_not_fit(tmp_path: Path, toml: Path, change: Any, words: str) -> None:
    arrays = values_of(make_experiment())
    change(arrays)
    np.savez(tmp_path / "in.npz", **arrays)
    error = invoke("import", tmp_path / "in.npz", tmp_path / "imported", "--model", toml).exception
    assert isinstance(error, ConfigurationError) and words in str(error)
    assert not (tmp_path / "imported").exists()


def test_what_is_no_such_file_or_folder(tmp_path: Path, toml: Path) -> None:
    def error_of(file: str, folder: str = "imported") -> BaseException | None:
        return invoke("import", tmp_path / file, tmp_path / folder, "--model", toml).exception

    assert "no such file" in str(error_of("none.npz"))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    damaged = error_of("cut.npz")
    assert isinstance(damaged, DamagedDataError) and "cut.npz" in str(damaged)
    assert "its ending does not tell" in str(error_of("file.bin"))
    np.savez(tmp_path / "in.npz", **values_of(make_experiment()))
    assert "does not exist" in str(error_of("in.npz", "."))


def test_one_that_was_imported_begins_a_run_but_is_none_to_go_on_with(tmp_path: Path, toml: Path) -> None:
    np.savez(tmp_path / "in.npz", **values_of(make_experiment()))
    text = invoke("import", tmp_path / "in.npz", tmp_path / "imported", "--model", toml).stdout
    assert f"train.warmstart_from={tmp_path / 'imported'}" in text
    experiment = make_experiment(servers=3)
    layout = build_layout(experiment.model, 3)
    found = manifest.verify(tmp_path / "imported")
    check_model(found, tmp_path / "imported", layout)
    with pytest.raises(ConfigurationError, match="warmstart_from"):
        check_resumable(found, tmp_path / "imported", experiment, layout)
    assert manifest.find_checkpoint(str(tmp_path / "imported"), "train.warmstart_from") == tmp_path / "imported"


def test_a_model_of_targets_is_exported_as_it_predicts(tmp_path: Path) -> None:
    """Its modules are computed here by NumPy, in PyTorch's order of dimensions."""
    model = MODELS["regression"]
    run = make_run(tmp_path, 1, make_experiment(model))
    exported = values("export", run, tmp_path / "out.npz", "--order", "torch")
    lines = [line.strip() for line in exported["module"].splitlines()]
    assert lines[1:-1] == [
        "nn.Conv2d(3, 4, (2, 2)),  # 0",
        "nn.Flatten(),  # 1",
        "nn.Linear(48, 6),  # 2",
        "nn.Tanh(),  # 3",
        "nn.Linear(6, 3),  # 4; what adamctl predicts; its loss is nn.MSELoss()",
    ]
    images = np.random.default_rng(5).standard_normal((6, *model.input)).astype(np.float32)
    with np.load(tmp_path / "out.npz") as arrays:
        found = np.zeros((6, 4, 3, 4))
        for y, x in np.ndindex(2, 2):
            window = images.transpose(0, 3, 1, 2)[:, :, y : y + 3, x : x + 4]
            found += np.einsum("ncij,fc->nfij", window, arrays["0.weight"][:, :, y, x])
        found += arrays["0.bias"][:, None, None]
        hidden = np.tanh(found.reshape(6, -1) @ arrays["2.weight"].T + arrays["2.bias"])
        expected = hidden @ arrays["4.weight"].T + arrays["4.bias"]
    np.savez(tmp_path / "images.npz", x=images)
    told = values("predict", run, tmp_path / "images.npz")["predictions"]
    np.testing.assert_allclose([one["outputs"] for one in told], expected, rtol=2e-4, atol=2e-5)


def test_the_code_of_a_loss_of_ones_own_says_that_it_is_not_exported() -> None:
    model = Model((4,), (Dense(3),), "tests.losses_for_tests:Absolute")
    assert "outputs that tests.losses_for_tests:Absolute compares, which is not exported" in module_code(model)


def test_the_code_says_what_the_logits_are_for() -> None:
    assert "nn.Softmax(1)" in module_code(SMALL) and "nn.Sigmoid()" in module_code(MODELS["pools"])
