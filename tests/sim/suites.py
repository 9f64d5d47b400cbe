"""The kinds of clusters that are simulated, by name."""

from __future__ import annotations

from tests.sim.controllers.mutants import MUTANTS
from tests.sim.controllers.scenario import EVENTS_MIN, Scenario
from tests.sim.partitions.mutants import MUTANTS as PARTITION_MUTANTS
from tests.sim.partitions.scenario import EVENTS_MIN as PARTITION_EVENTS_MIN
from tests.sim.partitions.scenario import PartitionScenario
from tests.sim.runner import Suite
from tests.sim.runs.loss_mutants import MUTANTS as LOSS_MUTANTS
from tests.sim.runs.mutants import MUTANTS as RUN_MUTANTS
from tests.sim.runs.scenario import RunScenario
from tests.sim.sandblaster.mutants import MUTANTS as SANDBLASTER_MUTANTS
from tests.sim.sandblaster.scenario import EVENTS_MIN as SANDBLASTER_EVENTS_MIN
from tests.sim.sandblaster.scenario import SandblasterScenario
from tests.sim.servers.mutants.clients import MUTANTS as CLIENT_MUTANTS
from tests.sim.servers.mutants.jobs import MUTANTS as JOB_MUTANTS
from tests.sim.servers.mutants.keeping import MUTANTS as KEEPING_MUTANTS
from tests.sim.servers.mutants.servers import MUTANTS as SERVER_MUTANTS
from tests.sim.servers.mutants.shells import MUTANTS as SHELL_MUTANTS
from tests.sim.servers.scenario import EVENTS_MIN as SERVER_EVENTS_MIN
from tests.sim.servers.scenario import ServerScenario

_CONTROLLER_PARTS = ("scenario", "controller", "clients", "nodes", "history", "invariants")
_CONTROLLERS = (
    "roles/controller/core/**/*.py",
    "tests/sim/engine.py",
    *(f"tests/sim/controllers/{part}.py" for part in _CONTROLLER_PARTS),
)
CONTROLLERS = Suite(
    "controllers",
    Scenario,
    MUTANTS,
    _CONTROLLERS,
    EVENTS_MIN,
)
SERVERS = Suite(
    "servers",
    ServerScenario,
    SERVER_MUTANTS | SHELL_MUTANTS | KEEPING_MUTANTS | CLIENT_MUTANTS | JOB_MUTANTS,
    (
        *_CONTROLLERS,
        "roles/ps/**/*.py",
        "tests/sim/processes/*.py",
        "tests/sim/servers/*.py",
        "tests/sim/servers/shells/*.py",
        "tests/sim/servers/clients/*.py",
    ),
    SERVER_EVENTS_MIN,
)
RUNS = Suite(
    "runs",
    RunScenario,
    RUN_MUTANTS | LOSS_MUTANTS,
    ("roles/coordinator/core/**/*.py", "tests/sim/runs/*.py", *SERVERS.sources),
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
        "tests/sim/partitions/*.py",
        "tests/sim/processes/*.py",
        "tests/sim/engine.py",
        "tests/sim/runs/ledger.py",
        "tests/sim/servers/clients/real_worker.py",
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
        "tests/sim/partitions/rig.py",
        "tests/sim/sandblaster/*.py",
        "tests/sim/engine.py",
    ),
    SANDBLASTER_EVENTS_MIN,
)
SUITES = {suite.name: suite for suite in (CONTROLLERS, SERVERS, RUNS, PARTITIONS, SANDBLASTER)}
