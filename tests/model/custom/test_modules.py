"""Classes of the user's own are found by import path, and what is wrong is said with what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.model.custom.modules import Kind, add_folder, class_at, folder_of, path_of
from tests.custom_layers import Relu

LAYERS = Kind(adam.Layer, "type", "layers")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.custom_layers", 'expected type = "module:Class"'),
        ("tests.custom_layers:", 'expected type = "module:Class"'),
        ("os; rm:X", 'expected type = "module:Class"'),
        ("__main__:Relu", 'type = "layers:Relu"'),
        ("no_such_module_here:Relu", f"install it there, for {sys.executable}"),
        ("tests.custom_layers:Rellu", 'has no class Rellu. Did you mean "Relu"?'),
        ("tests.custom_layers:NOT_A_LAYER.Inner", "has no class NOT_A_LAYER.Inner."),
        ("tests.custom_layers:NOT_A_LAYER", "derived from adam.Layer; found 5"),
        ("pathlib:Path", "derived from adam.Layer"),
    ],
)
def test_what_is_wrong_with_a_path_is_said(path: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        class_at(path, LAYERS)
    assert message in str(raised.value)


def test_a_module_that_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "fails_at_import.py").write_text("1 / 0\n")
    (tmp_path / "needs_another.py").write_text("import not_installed_anywhere\n")
    add_folder(tmp_path)
    with pytest.raises(ConfigurationError, match="fails_at_import cannot be imported: ZeroDivisionError"):
        class_at("fails_at_import:Own", LAYERS)
    with pytest.raises(ConfigurationError, match=r"needs_another cannot be imported: .*not_installed_anywhere"):
        class_at("needs_another:Own", LAYERS)


def test_modules_are_found_in_the_present_folder_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies_beside.py").write_text("from tests.custom_layers import Relu\n\n\nclass Own(Relu):\n    pass\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    found = class_at("lies_beside:Own", LAYERS)
    assert found.__name__ == "Own" and sys.path[-1] == folder_of("lies_beside") == str(tmp_path)


def test_a_class_has_the_path_by_which_others_import_it() -> None:
    assert path_of(Relu, LAYERS) == "tests.custom_layers:Relu"
    twin = type("Relu", (Relu,), {"__module__": "tests.custom_layers", "__qualname__": "Relu"})
    with pytest.raises(ConfigurationError, match="found another there"):
        path_of(twin, LAYERS)
    of_main = type("Relu", (Relu,), {"__module__": "__main__", "__qualname__": "Relu"})
    with pytest.raises(ConfigurationError, match="put the class into a file"):
        path_of(of_main, LAYERS)
    assert folder_of("tests.custom_layers") == str(ROOT) and folder_of("sys") == ""
