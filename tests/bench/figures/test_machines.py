"""Emulated machines fit on this one, or are refused with what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench import control_groups
from adamctl.bench.figures import machines
from adamctl.bench.figures.machines import (
    CORES_MOST,
    LOAD_MOST,
    check_core_shares,
    check_machines,
    core_here,
    said_of_load,
)
from adamctl.errors import ConfigurationError


def test_all_machines_together_have_what_there_is() -> None:
    check_machines({"worker-1": 0.4, "worker-2": 0.4, "worker-3": 0.4, "ps-1": 0.3})
    with pytest.raises(ConfigurationError, match=rf"expected machines with {CORES_MOST:g} cores together; found 1.9"):
        check_machines({"worker-1": 0.4, "worker-2": 0.4, "worker-3": 0.4, "ps-1": 0.4})
    check_machines({"worker-1": 0.9, "worker-2": 0.9}, beside_cores=0.0)


def test_a_machine_with_less_than_a_group_can_give_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"worker-2: expected at least 0\.1 of a core; found 0\.05"):
        check_machines({"worker-1": 0.4, "worker-2": 0.05})


def test_without_control_groups_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    with pytest.raises(ConfigurationError, match=r"emulated machines: expected .* in a container") as error:
        check_core_shares()
    assert error.value.exit_code == 2


def test_a_core_of_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "PRODUCT_ROUNDS", 1)
    monkeypatch.setattr(machines, "PRODUCT_S", 0.01)
    monkeypatch.setattr(machines, "CHAIN_TURNS", 100_000)
    core = core_here()
    assert 1e8 < core.clock_hz < 1e10 and core.operations_per_cycle in (8, 16, 32, 64) and core.product_per_s > 0


def test_a_load_above_the_limit_is_warned_of() -> None:
    assert said_of_load(LOAD_MOST) == "load before it: 3.0"
    assert "above 3, so its times mean little" in said_of_load(LOAD_MOST + 0.1)
