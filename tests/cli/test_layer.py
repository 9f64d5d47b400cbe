"""`adamctl layer check` and `adamctl init layer`: what they say of a layer, and a layer to start from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adamctl.cli.main import application, run

RELU = "tests.custom_layers:Relu"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments))


def test_a_layer_that_keeps_its_promises_passes() -> None:
    result = invoke("layer", "check", RELU, "--input", "5,4,2", "--partitions", "2")
    assert result.exit_code == 0
    assert result.stdout == f"{RELU} on 5,4,2 keeps its promises, whole and in 2 parts\n"
    result = invoke("layer", "check", "whiten", "--input", "5,4,2", "--set", "size=3", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"] is True


def test_one_that_does_not_is_told_and_ends_with_4() -> None:
    wrong = "tests.kernels.layer_check.test_check:ParameterOrder"
    result = invoke("layer", "check", wrong, "--input", "7,6,2")
    assert result.exit_code == 4
    assert f"{wrong} on 7,6,2 breaks a promise:\ngradients: gradient of gain at [0]: found " in result.stdout
    told = json.loads(invoke("layer", "check", wrong, "--input", "7,6,2", "--json").stdout)
    assert told["ok"] is False and {row["check"] for row in told["findings"]} == {"gradients"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((RELU, "--input", "5,x"), "expected whole numbers of at least 1"),
        ((RELU, "--input", "5,4"), "expected FEATURES or HEIGHT,WIDTH,MAPS"),
        ((RELU, "--input", "5", "--set", "sise=3"), "unknown key sise"),
        (("no_such_module:Own", "--input", "5"), "no module no_such_module on"),
        ((RELU, "--input", "5", "--seed", "-1"), "-1 is not in the range x>=0"),
    ],
)
def test_what_is_wrong_with_the_command_is_said(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["layer", "check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_layer_to_start_from_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = invoke("init", "layer", "smoothed_image")
    assert result.exit_code == 0 and 'type = "smoothed_image:SmoothedImage"' in result.stdout
    test = (tmp_path / "test_smoothed_image.py").read_text()
    assert "from smoothed_image import SmoothedImage" in test and "def test_smoothed_image_keeps" in test
    checked = invoke("layer", "check", "smoothed_image:SmoothedImage", "--input", "6,5,2", "--set", "size=5")
    assert checked.exit_code == 0, checked.output
    exec(compile(test, "test_smoothed_image.py", "exec"), found := {})
    found["test_smoothed_image_keeps_its_promises"]()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("mine")
    assert run(["init", "layer", "mine", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "mine.py").read_text() == "mine" and not (tmp_path / "test_mine.py").exists()
    assert run(["init", "layer", "Mine2", "--folder", str(tmp_path)]) == 2
    assert "small letters" in capsys.readouterr().err
