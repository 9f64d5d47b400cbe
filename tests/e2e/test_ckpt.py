"""A checkpoint taken from a run that goes on, restored onto another number of servers, trained on from and exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from tests.e2e.conftest import EXAMPLES, Command, Runner

DIGITS = EXAMPLES / "digits.toml"


def controller_of(command: Command) -> str:
    """Returns the address of a run's own controller, once its log says it."""

    def found() -> str:
        for log in command.folder.rglob("logs/controller*.log"):
            ready = re.search(r"ready on tcp://(\S+?)[,\s]", log.read_text())
            if ready:
                return ready[1]
        return ""

    return str(command.wait_until(found))


def test_saved_while_training_restored_onto_two_servers_and_exported(adamctl: Runner, tmp_path: Path) -> None:
    steady = ("--set", "optimizer.schedule.type=constant", "--set", "train.batch=32")
    train = adamctl.start("train", DIGITS, *steady, "--passes", "2000", "--set", "train.checkpoint_every=0")
    train.wait_until(train.trained)
    code, stdout, stderr = adamctl.run("ckpt", "save", "--controller", controller_of(train), "--json")
    assert code == 0, stderr
    saved = json.loads(stdout)
    assert saved["job"] == "digits" and Path(saved["folder"]).name == f"{saved['number']:06d}"
    assert train.process.poll() is None
    code, stdout, stderr = adamctl.run("ckpt", "verify", saved["folder"])
    assert code == 0, stderr
    code, stdout, stderr = adamctl.run("run", "stop", "digits", "--controller", controller_of(train), "--json")
    assert code == 0 and json.loads(stdout)["asked"], stderr
    code, _, stderr = train.wait()
    assert code == 1 and "adamctl run stop" in stderr, stderr

    code, stdout, stderr = adamctl.run(
        "ckpt", "restore", saved["folder"], "--into", "again", "--ps", "2",
        "--set", "train.passes=1", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    restored = json.loads(stdout)
    assert restored["command"] == "adamctl train again/experiment.toml --resume again"
    code, _, stderr = adamctl.run(*restored["command"].split()[1:], "--passes", "2000", "--set", "train.target=0.9")
    assert code == 0, stderr
    assert "resumes from checkpoint" in stderr or "target" in stderr
    code, stdout, stderr = adamctl.run("ckpt", "list", "digits", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["checkpoints"][-1]["complete"]

    code, _, stderr = adamctl.run("export", "digits", "out.npz")
    assert code == 0, stderr
    with np.load(tmp_path / "out.npz") as opened:
        assert all(np.isfinite(opened[name]).all() for name in opened.files)
    code, _, stderr = adamctl.run("import", "out.npz", "imported", "--model", DIGITS)
    assert code == 0, stderr
    accuracy = [json.loads(adamctl.run("eval", place, "--json")[1])["top1"] for place in ("digits", "imported")]
    assert accuracy[0] == accuracy[1] >= 0.85


def test_damage_ends_with_exit_code_5(adamctl: Runner) -> None:
    code, _, stderr = adamctl.run("train", DIGITS, "--passes", "1")
    assert code == 0, stderr
    (file,) = adamctl.folder.rglob("*.adam")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for command in (("ckpt", "verify", "digits"), ("ckpt", "restore", "digits"), ("export", "digits", "out.npz")):
        code, _, stderr = adamctl.run(*command)
        assert code == 5 and file.name in stderr and "Traceback" not in stderr, stderr
