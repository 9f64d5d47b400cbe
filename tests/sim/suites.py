"""The kinds of clusters that are simulated, by name."""

from __future__ import annotations

from tests.sim.mutants import MUTANTS
from tests.sim.runner import Suite
from tests.sim.scenario import Scenario

_PARTS = ("engine", "scenario", "controllers", "clients", "nodes", "history", "invariants")
CONTROLLERS = Suite(
    "controllers", Scenario, MUTANTS, ("roles/controller/core*.py", *(f"tests/sim/{part}.py" for part in _PARTS))
)
SUITES = {suite.name: suite for suite in (CONTROLLERS,)}
