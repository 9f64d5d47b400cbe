"""What users write and read is their own form, in TOML, JSON and messages, and comes back as it was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from adamctl.config.load import load_experiment
from adamctl.config.resolved import read_resolved, to_toml
from adamctl.errors import ConfigurationError
from adamctl.model.custom.plain import builtins_of, experiment_from_user, from_user, to_user
from adamctl.model.description import Custom, Dense
from adamctl.model.layout import tensors_of

TEXT = """name = "own"
[model]
input = [6, 6, 1]
[[model.layers]]
type = "tests.custom_layers:RowSums"
size = 2
padding = "valid"
[[model.layers]]
type = "whiten"
size = 3
[[model.layers]]
type = "softmax"
units = 3
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


def test_a_layer_of_ones_own_is_written_as_any_other(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path)).experiment
    first, second, _ = experiment.model.layers
    assert first == Custom("tests.custom_layers:RowSums", (("padding", "valid"), ("size", 2)))
    assert second == Custom("whiten", (("size", 3),))
    names = [tensor.name for tensor in tensors_of(experiment.model)]
    assert names == ["row_sums1.added", "row_sums1.scale", "whiten1.gain", "softmax1.weight", "softmax1.bias"]


def test_it_is_written_back_in_that_form(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path)).experiment
    text = to_toml(experiment)
    assert 'type = "tests.custom_layers:RowSums"\npadding = "valid"\nsize = 2' in text and 'type = ":"' not in text
    (tmp_path / "again.toml").write_text(text)
    assert read_resolved(tmp_path / "again.toml").model == experiment.model
    values = msgspec.json.decode(msgspec.json.encode(builtins_of(experiment)))
    assert values["model"]["layers"][0]["type"] == "tests.custom_layers:RowSums"
    assert msgspec.convert(experiment_from_user(values), type(experiment)).model == experiment.model


def test_between_processes_it_goes_as_it_is(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path)).experiment
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(experiment), type=type(experiment))
    assert sent.model == experiment.model


def test_other_layers_are_left_alone() -> None:
    plain = msgspec.to_builtins(Dense(3))
    assert from_user(plain) is plain and to_user(plain) is plain and from_user(5) == 5
    assert from_user(msgspec.to_builtins(Custom("whiten"))) == msgspec.to_builtins(Custom("whiten"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("custom_layers:RowSums", "custom_layers:RowSum", r'own.toml:4: model.layers\[0\]: .* Did you mean "RowSums"'),
        ("size = 2", 'size = "2"', r"own.toml:4: model.layers\[0\]: .*Expected `int`, got `str`"),
        ("size = 2", "sise = 2", r'own.toml:4: model.layers\[0\]: unknown key sise. Did you mean "size"'),
        ("size = 2", "size = 7", r"own.toml:4: model.layers\[0\]: .* whole numbers of at least 1; found .0, 0, 1."),
        ("size = 2", "size = [[2]]", r"own.toml:6: model.layers\[0\].size: found .*; expected a number, text"),
        ("size = 3", "size = 4", r"own.toml:8: model.layers\[1\]: .*odd size"),
        ('"whiten"', '"whitten"', 'Did you mean "whiten"'),
        ('"whiten"', '":"', 'found ":"; expected one of "conv2d".*or a class of your own as "module:Class"'),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_experiment(write(tmp_path, TEXT.replace(old, new)))


def test_a_module_beside_the_experiment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "beside_it.py").write_text(
        "from tests.custom_layers import Relu\nclass Beside(Relu):\n    pass\n", encoding="utf-8"
    )
    text = TEXT.replace('"whiten"\nsize = 3', '"beside_it:Beside"')
    assert load_experiment(write(tmp_path, text)).experiment.model.layers[1] == Custom("beside_it:Beside")
