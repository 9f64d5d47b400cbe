"""Runs over several hosts, each a network namespace with an address of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench import namespaces
from tests.e2e.on_hosts import play

pytestmark = [
    pytest.mark.skipif(bool(namespaces.missing()), reason=f"hosts are network namespaces: {namespaces.missing()}"),
    pytest.mark.slow,
]


def test_a_run_joins_a_cluster_on_another_host(tmp_path: Path) -> None:
    play("join", tmp_path)


def test_a_host_is_lost_in_mid_training_and_copies_come_back_on_the_others(tmp_path: Path) -> None:
    play("host-lost", tmp_path)


def test_checkpoints_need_no_folder_that_all_hosts_share(tmp_path: Path) -> None:
    play("folders", tmp_path)
