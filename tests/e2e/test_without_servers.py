"""A replica without parameter servers, as a user starts it (cluster.ps = 0)."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import EXAMPLES, Runner

DIGITS = EXAMPLES / "digits.toml"
QUICK = ("--ps", "0", "--threads", "1", "--json")
CUT = ("--workers", "2", "--set", "cluster.partitions=2")


@pytest.mark.parametrize("cut", [pytest.param((), marks=pytest.mark.slow), CUT], ids=["one process", "two partitions"])
def test_a_run_trains_and_goes_on_from_its_checkpoint_with_servers_and_without(
    adamctl: Runner, cut: tuple[str, ...]
) -> None:
    code, stdout, stderr = adamctl.run("train", DIGITS, *QUICK, *cut, "--passes", "10")
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.95
    code, stdout, stderr = adamctl.run("eval", "digits/001", "--json")
    assert code == 0 and json.loads(stdout)["top1"] >= 0.95, stderr
    for passes, arguments in (("11", QUICK), ("12", ("--threads", "1", "--json")), ("13", (*QUICK, *CUT))):
        code, stdout, stderr = adamctl.run("train", DIGITS, *arguments, "--resume", "auto", "--passes", passes)
        assert code == 0, stderr
        assert json.loads(stdout)["best_test_top1"] >= 0.95


def test_a_worker_that_dies_ends_the_run_with_the_checkpoint_to_go_on_from(adamctl: Runner) -> None:
    command = adamctl.start(
        "train", DIGITS, *QUICK, *CUT, "--passes", "100000", "--set", "train.checkpoint_every=0.5", "--set",
        "train.evaluate_every=1000",
    )  # fmt: skip
    command.wait_until(lambda: len(list(adamctl.folder.glob("runs/digits/001/checkpoints/*/manifest.json"))) > 1)
    command.roles("worker")[1].kill()
    code, stdout, stderr = command.wait()
    assert code == 1 and json.loads(stdout)["state"] == "failed", (stdout, stderr)
    assert "and the parameters with it, because cluster.ps = 0; go on from checkpoint" in stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("--workers", "2"), "found 2 with cluster.ps = 0, which is 2 replicas"),
        (("--set", "cluster.replication=2"), "found 2 copies with cluster.ps = 0; servers keep copies"),
        (("--set", "train.consistency=sync"), "which is in step with nobody"),
        (("--set", "train.wire_push=bfloat16"), "nothing is sent"),
    ],
)
def test_what_needs_servers_is_refused(adamctl: Runner, settings: tuple[str, ...], message: str) -> None:
    code, _, stderr = adamctl.run("train", DIGITS, *QUICK, *settings)
    assert code == 2 and message in stderr, stderr
