"""The user's own modules that a layer's module imports are found and hashed; those of others are not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adamctl.model.custom.modules import FOLDERS_VARIABLE
from adamctl.model.custom.registry import other_source, source_hashes
from adamctl.model.custom.sources import imported_sources, module_file, source_hash
from adamctl.model.description import Custom, Model, Softmax
from adamctl.model.partition.rules import make_plan

LAYER = """import adamctl as adam
class Own(adam.Layer):
    def output_shape(self, input): return input
    def connectivity(self): return adam.Same()
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of a test are forgotten after it."""
    monkeypatch.delenv(FOLDERS_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    imported_sources.cache_clear()
    yield
    for name in [name for name in sys.modules if name.startswith("src_")]:
        del sys.modules[name]
    imported_sources.cache_clear()
    source_hash.cache_clear()


def write(folder: Path, **files: str) -> None:
    """Writes modules; `a__b` is module b of package a."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()
        path.write_text(text)
    importlib.invalidate_caches()


def found(folder: Path, module: str) -> list[str]:
    sys.path.append(str(folder))
    importlib.import_module(module)
    return list(imported_sources(module))


def test_modules_beside_it_are_found_also_where_a_function_imports_them_or_another_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        src_layers="import numpy, json\nimport src_helpers as h\ndef later():\n    from src_late import f\n",
        src_helpers="from src_pack.deep import number\n",
        src_pack__deep="from . import other\nnumber = 1\n",
        src_pack__other="import src_layers\n",
        src_pack__unused="",
        src_late="import not_there_at_all\n",
    )
    expected = ["src_helpers", "src_late", "src_pack", "src_pack.deep", "src_pack.other"]
    assert found(tmp_path, "src_layers") == expected
    assert "src_late" not in sys.modules, "nothing is imported for it"
    assert imported_sources("src_layers")["src_late"][0] == tmp_path / "src_late.py"


def test_those_of_a_package_are_found_from_inside_it(tmp_path: Path) -> None:
    write(tmp_path, src_own__layers="from .parts import sums\n", src_own__parts__sums="from ..table import x\n")
    write(tmp_path, src_own__table="x = 1\n")
    assert found(tmp_path, "src_own.layers") == ["src_own", "src_own.parts", "src_own.parts.sums", "src_own.table"]


def test_what_others_have_installed_is_not_looked_at(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    write(installed, src_theirs__layers="import src_third\nfrom src_theirs import tables\n", src_theirs__tables="")
    write(installed, src_third="")
    assert found(installed, "src_theirs.layers") == ["src_theirs", "src_theirs.tables"]
    write(tmp_path, src_mine="import src_third, numpy, adamctl, src_theirs.tables\n")
    assert found(tmp_path, "src_mine") == []
    assert found(Path(__file__).parents[3], "tests.custom_layers") == ["tests"], "adamctl's own have its version"


def test_those_in_folders_of_modules_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "elsewhere", src_common="")
    write(tmp_path / "here", src_user="import src_common\n")
    sys.path.append(str(tmp_path / "elsewhere"))
    assert found(tmp_path / "here", "src_user") == []
    assert list(imported_sources("src_user", (str(tmp_path / "elsewhere"),))) == ["src_common"]
    imported_sources.cache_clear()
    monkeypatch.setenv(FOLDERS_VARIABLE, f"/nowhere:{tmp_path / 'elsewhere'}")
    assert found(tmp_path / "here", "src_user") == ["src_common"]


def test_a_module_that_differs_is_named_with_its_file_and_changes_the_plan(tmp_path: Path) -> None:
    write(tmp_path, src_imports=f"import src_numbers\n{LAYER}", src_numbers="ONE = 1\n")
    sys.path.append(str(tmp_path))
    model = Model((4,), (Custom("src_imports:Own"), Softmax(2)))
    at_coordinator, plan = source_hashes(model), make_plan(model, 2).hash
    assert at_coordinator.keys() == {"src_imports:Own", "src_numbers"}
    assert other_source(model, at_coordinator) == "" and other_source(model, {}) == ""
    (tmp_path / "src_numbers.py").write_text("ONE = 2\n")
    imported_sources.cache_clear()
    problem = other_source(model, at_coordinator)
    assert problem.startswith("module src_numbers, which layer src_imports:Own imports: ")
    assert f"{tmp_path / 'src_numbers.py'} on " in problem and "is not the module that the coordinator has" in problem
    assert make_plan(model, 2).hash != plan


def test_a_module_that_only_one_of_them_has_is_named(tmp_path: Path) -> None:
    write(tmp_path, src_alone=f"import src_present\n{LAYER}", src_present="")
    sys.path.append(str(tmp_path))
    model = Model((4,), (Custom("src_alone:Own"), Softmax(2)))
    ours = source_hashes(model)
    problem = other_source(model, {**ours, "src_missing_here": "0" * 32})
    assert problem.startswith("module src_missing_here: expected it beside the layer or loss") and "none on" in problem
    problem = other_source(model, {**ours, "json": "0" * 32})
    assert f"found {module_file('json')} on " in problem
    problem = other_source(model, {"src_alone:Own": ours["src_alone:Own"]})
    assert f"{tmp_path / 'src_present.py'} on " in problem and "not beside the coordinator's" in problem
