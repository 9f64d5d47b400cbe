"""Classes are found by name, keys become objects, and what is wrong is said with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.model.custom.modules import FOLDERS_VARIABLE, add_folder
from adamctl.model.custom.registry import (
    class_of,
    described,
    environment_for,
    layer_of,
    other_source,
    search_path,
    source_hashes,
    without_native,
)
from adamctl.model.description import Custom, Dense, Model, Softmax
from tests.custom_layers import Checked, Relu

ROOT = Path(__file__).resolve().parents[3]
SOURCE = """import adamctl as adam
class Own(adam.Layer):
    def output_shape(self, input): return input
    def connectivity(self): return adam.Same()
"""


def test_a_class_is_found_by_module_and_name_or_by_a_short_name() -> None:
    assert class_of("tests.custom_layers:Relu") is Relu
    assert class_of("whiten").name == "whiten"


def test_a_built_in_name_is_not_for_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "takes_a_name.py").write_text(SOURCE.replace("(adam.Layer)", '(adam.Layer, name="dense")'))
    add_folder(tmp_path)
    with pytest.raises(ConfigurationError, match="'dense' is that of a built-in layer"):
        class_of("takes_a_name:Own")


@pytest.mark.parametrize("name", ["Big", "ends1", "", "two words"])
def test_a_name_that_cannot_be_in_names_of_parameters_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a name of small letters"):
        type("Wrong", (adam.Layer,), {}, name=name)


def test_keys_become_an_object_of_their_types() -> None:
    made = layer_of(Custom("tests.custom_layers:Checked", (("count", 3), ("sizes", (4,)), ("share", 1))))
    assert made == Checked(3, share=1.0, sizes=(4,))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((("count", 3), ("wrod", "b")), 'unknown key wrod. Did you mean "word"? Allowed here: type, count, share'),
        ((("count", "3"),), "Expected `int`, got `str`"),
        ((("word", "b"),), "missing required field `count`"),
        ((("count", 0),), "count must be at least 1; found 0"),
    ],
)
def test_what_is_wrong_with_a_key_is_said(keys: tuple, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        layer_of(Custom("tests.custom_layers:Checked", keys))
    assert message in str(raised.value)


def test_an_object_is_described_by_its_path_and_keys_and_comes_back() -> None:
    layer = Checked(2, word="b", flag=True, sizes=(7, 8))
    custom = described(layer)
    assert custom.path == "tests.custom_layers:Checked" and dict(custom.keys)["sizes"] == (7, 8)
    assert "limit" not in dict(custom.keys)
    assert layer_of(custom) == layer
    assert described(layer_of(Custom("whiten", (("size", 3),)))).path == "whiten"


def test_a_class_inside_a_function_cannot_be_described() -> None:
    class Inside(Relu):
        pass

    with pytest.raises(ConfigurationError, match="defined inside a function"):
        described(Inside())


def test_another_process_of_this_machine_finds_the_module_by_its_environment(tmp_path: Path) -> None:
    """As a run's roles do: the module is in no folder of their own path."""
    folder = tmp_path / "beside the experiment"
    (folder / "of_mine").mkdir(parents=True)
    (folder / "of_mine" / "__init__.py").write_text("")
    (folder / "of_mine" / "layers.py").write_text(SOURCE)
    program = "from adamctl.model.custom.registry import class_of; print(class_of('of_mine.layers:Own').name)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(FOLDERS_VARIABLE, None)
    lines = [sys.executable, "-c", program]
    missing = subprocess.run(lines, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert missing.returncode and FOLDERS_VARIABLE in missing.stderr
    add_folder(folder)
    try:
        model = Model((4,), (Custom("of_mine.layers:Own"), Custom("whiten"), Softmax(2)))
        assert search_path(model) == (str(folder),)
        loss = "tests.losses_for_tests:Absolute"
        with_loss = Model((4,), (Custom("whiten"), Dense(2)), loss)
        assert search_path(with_loss) == (str(ROOT),)
        assert source_hashes(with_loss).keys() == {"whiten", loss, "tests"}
        environment = environment_for(model, {**environment, FOLDERS_VARIABLE: "/elsewhere"})
    finally:
        sys.path.remove(str(folder))
    assert environment[FOLDERS_VARIABLE] == f"{folder}{os.pathsep}/elsewhere"
    found = subprocess.run(lines, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert found.stdout == "own\n", found.stderr


def test_the_environment_of_other_models_stays_as_it_is() -> None:
    given = {"PATH": "/bin"}
    assert environment_for(Model((4,), (Softmax(2),)), given) is given


def test_layers_without_native_calls_are_named_once() -> None:
    model = Model((4,), (Custom("tests.custom_layers:Relu"), Custom("tests.custom_layers:Relu"), Softmax(2)))
    assert without_native(model) == ("tests.custom_layers:Relu",)
    loss = "tests.losses_for_tests:Absolute"
    assert without_native(Model((4,), (Dense(2),), loss)) == (loss,)
    assert without_native(Model((4,), (Dense(2),), "tests.losses_for_tests:NativeAbsolute")) == ()


def test_the_hash_is_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    hashes = []
    for number, text in enumerate((SOURCE, f"{SOURCE}# changed\n", SOURCE)):
        (tmp_path / f"hashed_{number}.py").write_text(text)
        add_folder(tmp_path)
        found = source_hashes(Model((4,), (Custom(f"hashed_{number}:Own"), Softmax(2))))
        hashes += found.values()
        assert list(found) == [f"hashed_{number}:Own"]
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_peer_with_another_source_is_named_and_one_that_tells_none_is_not() -> None:
    """Coordinators of the version before tell nothing."""
    model = Model((4,), (Custom("tests.custom_layers:Relu"), Softmax(2)))
    assert other_source(model, source_hashes(model)) == "" and other_source(model, {}) == ""
    problem = other_source(model, {"tests.custom_layers:Relu": "0" * 32})
    assert "layer tests.custom_layers:Relu: " in problem and "custom_layers.py on " in problem
