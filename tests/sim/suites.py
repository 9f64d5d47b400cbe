"""The kinds of clusters that are simulated, by name."""

from __future__ import annotations

from tests.sim.client_mutants import MUTANTS as CLIENT_MUTANTS
from tests.sim.job_mutants import MUTANTS as JOB_MUTANTS
from tests.sim.keeping_mutants import MUTANTS as KEEPING_MUTANTS
from tests.sim.loss_mutants import MUTANTS as LOSS_MUTANTS
from tests.sim.mutants import MUTANTS
from tests.sim.partition_mutants import MUTANTS as PARTITION_MUTANTS
from tests.sim.partition_scenario import EVENTS_MIN as PARTITION_EVENTS_MIN
from tests.sim.partition_scenario import PartitionScenario
from tests.sim.run_mutants import MUTANTS as RUN_MUTANTS
from tests.sim.run_scenario import RunScenario
from tests.sim.runner import Suite
from tests.sim.sandblaster_mutants import MUTANTS as SANDBLASTER_MUTANTS
from tests.sim.sandblaster_scenario import EVENTS_MIN as SANDBLASTER_EVENTS_MIN
from tests.sim.sandblaster_scenario import SandblasterScenario
from tests.sim.scenario import EVENTS_MIN, Scenario
from tests.sim.server_mutants import MUTANTS as SERVER_MUTANTS
from tests.sim.server_scenario import EVENTS_MIN as SERVER_EVENTS_MIN
from tests.sim.server_scenario import ServerScenario
from tests.sim.shell_mutants import MUTANTS as SHELL_MUTANTS

_PARTS = ("engine", "scenario", "controllers", "clients", "nodes", "history", "invariants")
CONTROLLERS = Suite(
    "controllers",
    Scenario,
    MUTANTS,
    ("roles/controller/core/**/*.py", *(f"tests/sim/{part}.py" for part in _PARTS)),
    EVENTS_MIN,
)
_SERVER_PARTS = (
    "server_cluster",
    "server_invariants",
    "server_ledger",
    "server_scenario",
    "sim_*",
    "job_kinds",
    "ledger_parts",
)
SERVERS = Suite(
    "servers",
    ServerScenario,
    SERVER_MUTANTS | SHELL_MUTANTS | KEEPING_MUTANTS | CLIENT_MUTANTS | JOB_MUTANTS,
    (
        "roles/controller/core/**/*.py",
        "roles/ps/**/*.py",
        *(f"tests/sim/{part}.py" for part in (*_PARTS, *_SERVER_PARTS)),
    ),
    SERVER_EVENTS_MIN,
)
RUNS = Suite(
    "runs",
    RunScenario,
    RUN_MUTANTS | LOSS_MUTANTS,
    ("roles/coordinator/core/**/*.py", "tests/sim/run_[ls]*.py", *SERVERS.sources),
    SERVER_EVENTS_MIN,
)
PARTITIONS = Suite(
    "partitions",
    PartitionScenario,
    PARTITION_MUTANTS,
    (
        "adamctl/model/**/*.py",
        "kernels/**/*.py",
        "roles/coordinator/core/**/*.py",
        "roles/worker/**/*.py",
        "tests/kernels/partition/replica.py",
        "tests/roles/coordinator/core/group*.py",
        "tests/sim/partition_*.py",
        *(f"tests/sim/{part}.py" for part in ("engine", "run_ledger", "sim_loop", "sim_process", "sim_real_worker")),
    ),
    PARTITION_EVENTS_MIN,
)
SANDBLASTER = Suite(
    "sandblaster",
    SandblasterScenario,
    SANDBLASTER_MUTANTS,
    (
        "adamctl/model/**/*.py",
        "adamctl/optimizers/*.py",
        "kernels/numeric/**/*.py",
        "roles/coordinator/core/**/*.py",
        "roles/ps/apply/vector_work.py",
        "roles/ps/core/**/*.py",
        "roles/worker/core/**/*.py",
        "tests/roles/ps/ps_cluster.py",
        "tests/sim/partition_rig.py",
        "tests/sim/sandblaster_*.py",
        "tests/sim/engine.py",
    ),
    SANDBLASTER_EVENTS_MIN,
)
SUITES = {suite.name: suite for suite in (CONTROLLERS, SERVERS, RUNS, PARTITIONS, SANDBLASTER)}
