"""Spoken digits, from a tar of recordings to the names of what was said."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.e2e.conftest import EXAMPLES, Runner


@pytest.fixture
def data() -> Path:
    folder = Path(os.environ.get("ADAMCTL_DATA", "") or "/nowhere")
    if not (folder / "fsdd" / "fsdd.tar").exists():
        pytest.skip("the folder that ADAMCTL_DATA names has no fsdd/fsdd.tar")
    return folder


@pytest.mark.slow
def test_spoken_digits_reach_95_percent_of_recordings_and_are_told_by_name(adamctl: Runner, data: Path) -> None:
    where = ("--data", str(data))
    code, stdout, stderr = adamctl.run("train", EXAMPLES / "speech_digits.toml", *where, "--json", "--passes", "2")
    assert code == 0, stderr
    assert json.loads(stdout)["examples"] == 2 * 112_911
    code, stdout, stderr = adamctl.run("eval", "speech_digits", *where, "--json")
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result["examples"] == 12_326 and result["by_group"]["groups"] == 300
    assert result["by_group"]["top1"] >= 0.95, result
    with tarfile.open(data / "fsdd" / "fsdd.tar") as archive:
        archive.extractall(
            adamctl.folder / "said", [archive.getmember("recordings/7_theo_3.wav")], filter="data"
        )  # fmt: skip
    code, stdout, stderr = adamctl.run("predict", "speech_digits", adamctl.folder / "said", *where, "--json")
    assert code == 0, stderr
    (found,) = json.loads(stdout)["predictions"]
    assert found["classes"][0]["class"] == "7"
