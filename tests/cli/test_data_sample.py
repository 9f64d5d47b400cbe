"""`adamctl data sample` writes a picture that shows images and their variants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "digits.toml")


def test_a_picture_is_written_and_one_that_cannot_be_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the image extra")
    pytest.importorskip("sklearn")
    out = tmp_path / "sheet.png"
    line = ["data", "sample", EXAMPLE, "--examples", "3", "--passes", "4", "--set", "data.augment.rotate=10"]
    done = CliRunner().invoke(application, [*line, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["examples"], said["passes"]) == (3, 4)
    assert list(image.open(out).size) == said["size"]
    refused = CliRunner().invoke(application, [*line, "--out", str(tmp_path / "sheet.nothing")])
    assert refused.exit_code == 1 and "--out" in str(refused.exception)
