"""Imports go only downward (ARCHITECTURE.md), a role reaches another only through its client, cores are pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.parsing import parsed

ROOT = Path(__file__).resolve().parent.parent
IMPURE = {"asyncio", "time", "random", "os", "socket", "lmdb", "threading", "subprocess"}
ROLES = ("ps", "worker", "data", "controller", "coordinator", "host")
TIER_OF_PACKAGE = {
    "adamctl.errors": 0,
    "adamctl.importing": 0,
    "adamctl.plugins": 0,
    "adamctl.config": 0,
    "adamctl.model": 0,
    "adamctl.wire": 1,
    "adamctl.kernels": 1,
    "adamctl.optimizers": 2,
    "adamctl.net": 3,
    "adamctl.cli": 5,
    "adamctl.live": 5,
    "adamctl.launch": 5,
    "adamctl.bench": 5,
    "adamctl.metrics": 5,
    "adamctl.api": 5,
    "adamctl.__main__": 5,
    "adamctl": 5,
}
SHELLS = {"server", "role", "driver", "registry"}
LOADED_BY_NO_CORE = {"asyncio", "socket", "uvloop", "lmdb"}
LINES_LOOKED_AT, LINES_MAX, LINES_MIN = 400, 600, 60
LONG: dict[str, str] = {}
"""Modules of more than 400 lines, and why each is one thing."""
SHORT = {
    "adamctl/__main__.py": "runs before anything else is imported",
    "adamctl/api/network.py": "loads nothing but models",
    "adamctl/bench/bars.py": "the same for every benchmark of bars",
    "adamctl/bench/data/*": "one part of a benchmark, one file",
    "adamctl/bench/kernels/cases.py": "lies below the files of cases and the benchmark that runs them",
    "adamctl/bench/kernels/sample_models.py": "a table of networks, for `bench kernels` without an experiment",
    "adamctl/bench/report.py": "the same for every benchmark",
    "adamctl/bench/script.py": "the same for every script of benchmarks",
    "adamctl/cli/*": "one command, one file",
    "adamctl/config/algorithms.py": "lies below experiments and the registry of algorithms",
    "adamctl/config/formats.py": "lies below experiments and the readers",
    "adamctl/config/neighbours.py": "a table of each release, apart from the experiment",
    "adamctl/model/tally.py": "lies below losses of one's own and metrics",
    "kernels/layers/make.py": "a table of all losses, which do not import one another",
    "roles/cluster_binding.py": "the same for every role that keeps a folder",
    "roles/garbage.py": "the same for every role",
    "roles/data/readers/access.py": "the same for every reader",
    "roles/data/readers/parquet.py": "a description without pyarrow",
    "adamctl/config/names.py": "names and foreign text are checked in every tier",
    "adamctl/config/section.py": "lies below all tables of an experiment",
    "adamctl/config/schedule.py": "formulas that coordinator and workers both compute",
    "adamctl/importing.py": "is imported before all else, by the command line, roles and kernels",
    "adamctl/launch/checking.py": "`train` asks it, and so does `config check`, which starts nothing",
    "adamctl/launch/hosts/beside.py": "the same for all that runs beside a front",
    "adamctl/launch/places/by_hand.py": "one engine, one file",
    "adamctl/launch/readings.py": "loads psutil, which only what shows readings needs",
    "adamctl/launch/sinks/*": "one sink, one file: whoever adds one copies it",
    "adamctl/launch/scripts/*": "one kind of text, one file",
    "adamctl/launch/terminal.py": "is about this process alone; front.py is about the roles of a run",
    "adamctl/launch/troubles.py": "a loop of its own, which starts and stops nothing, beside those of front.py",
    "adamctl/launch/waits.py": "pure, as front.py is not",
    "adamctl/live/reading.py": "lies below view.py and replicas.py, which makes a part of its rows",
    "adamctl/live/plain.py": "one way to show a run, one file: display.py is the other",
    "adamctl/live/units.py": "numbers for people, in the live view and in commands",
    "adamctl/metrics/exposition.py": "all that knows prometheus-client; its neighbours do without",
    "adamctl/model/custom/asking.py": "lies below layers, losses and metrics",
    "adamctl/model/custom/plain.py": "lies above registry.py and is all that files and messages need",
    "adamctl/model/initial.py": "draws with NumPy, which layout.py does without",
    "adamctl/model/rule.py": "lies below experiments, the records of a cluster, and kernels",
    "adamctl/model/wire_types.py": "lies below experiments and protocol.py",
    "adamctl/net/arriving.py": "where the pieces of a body go; server.py, which receives them, has no room for it",
    "adamctl/net/handler.py": "the same for every transport, so in none of them",
    "adamctl/net/large_pages.py": "lies below the buffers of connections and the arrays of parameter servers",
    "adamctl/net/loop.py": "whatever starts an event loop chooses it here",
    "adamctl/net/peer_user.py": "asks the system, as sources.py, being pure, does not",
    "adamctl/net/tls/expiry.py": "pure, as credentials.py and layer.py, which use it, are not",
    "adamctl/net/token_file.py": "the command line, the Python interface and benchmarks read it, before they connect",
    "adamctl/wire/changes.py": "no message, and lies below every configuration service and the cores that follow one",
    "adamctl/wire/checksum.py": "one choice, for frames, the store and checkpoints",
    "adamctl/wire/unreadable.py": "one list, for all code that decodes what others wrote",
    "kernels/array.py": "lies below native.py, which operation.py needs",
    "kernels/compile_ahead.py": "a program",
    "kernels/compiled/*": "one kind of kernel, one file: they are loaded and compiled by its name",
    "kernels/custom/*": "one layer, one file, as a user writes it",
    "kernels/layers/*": "one layer, or what two of them share, in one file",
    "kernels/numeric/*": "one operation on arrays, one file",
    "kernels/rules/*": "one rule, one file: whoever adds one copies it",
    "kernels/tiling.py": "lies below backend.py, which layers that cut by it need",
    "roles/*/role.py": "what the registry loads to know a role, without the role's imports",
    "roles/controller/known_cluster.py": "pure, as client.py, which uses it, is not",
    "roles/controller/core/service/record_kinds.py": "lies below commands.py, for requests, restores and the checker",
    "roles/controller/core/service/validate.py": "above commands.py, as record_kinds.py is not",
    "roles/coordinator/batch_start.py": "above the cores, which know no experiment, and below the process",
    "roles/coordinator/data_reading.py": "a loop of its own, which decides nothing about the run",
    "roles/coordinator/checkpoint/serving.py": "for other processes; writer.py and members.py make what it reads",
    "roles/coordinator/core/membership.py": "pure, as losses.py, which uses it, is not",
    "roles/data/augment/chance.py": "lies below the draws for images, for sound and for augmenters of other packages",
    "roles/data/memory.py": "one division of memory, which server.py is told and store.py uses",
    "roles/data/sets/places.py": "pure, as decode.py, which uses it in threads, is not",
    "roles/data/augment/translation.py": "one operation on images",
    "roles/ps/apply/load_meter.py": "lies below both ways to apply, by threads and while a push arrives",
    "roles/ps/apply/update_sources.py": "lies below applier.py and fused.py",
    "roles/ps/background.py": "knows nothing of what a server runs in it",
    "roles/ps/client/cost_estimate.py": "lies below session.py, which parameter_client.py needs",
    "roles/ps/core/ended_incarnations.py": "pure, as retired_clients.py, which uses it, is not",
    "roles/ps/core/replicas.py": "lies below shard.py, which replication.py needs",
    "roles/ps/core/replication.py": "lies below admission.py and server_core.py, above shard.py",
    "roles/ps/replication/checksums.py": "locks, which shell.py, on its loop, does without",
    "roles/ps/statistics.py": "rates of any counters: a server's, and those of its copies",
    "roles/ps/store/writer_thread.py": "an executor, for any work; flusher.py gives it the store's",
    "roles/service_manager.py": "talks to systemd, about a role or anything else",
    "roles/worker/core/shares.py": "one decision, with its reasons",
    "roles/worker/partition/group.py": "pure, and lies below links.py and all that runs in a group",
    "roles/worker/divergence.py": "lies below session.py, which raises it and has no room for it",
}
"""Files of fewer than 60 lines (patterns of paths), and why each stands alone."""


def sources() -> Iterator[tuple[str, Path]]:
    for folder, prefix in (
        ("adamctl", "adamctl"),
        ("roles", "adamctl.roles"),
        ("kernels", "adamctl.kernels"),
    ):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if folder == "adamctl" and inside.parts[0] in ("roles", "kernels"):
                continue
            yield ".".join([prefix, *inside.with_suffix("").parts]).removesuffix(".__init__"), path


MODULES = dict(sources())
PACKAGES = ("adamctl", "adamctl.roles", "adamctl.kernels")


def role_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[:2] == ["adamctl", "roles"] and parts[2] in ROLES else None


def is_core(module: str) -> bool:
    return role_of(module) is not None and "core" in module.split(".")[3:]


def tier(module: str) -> int:
    """The tier of one of our modules: cores 2, servers and what starts them 4, the rest of a role 3."""
    parts = module.split(".")
    if parts[:2] == ["adamctl", "roles"]:
        if is_core(module):
            return 2
        return 4 if parts[-1] in SHELLS else 3
    return TIER_OF_PACKAGE[".".join(parts[:2])]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module a file imports, and whether at its top level (False inside a function or TYPE_CHECKING)."""
    tree = parsed(path)
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in top
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in top


def every_import(modules: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each of the modules with each that it imports."""
    for module in modules:
        for imported, _ in imports(MODULES[module]):
            yield module, imported


def test_imports_only_downward() -> None:
    wrong = [
        f"{module} (tier {tier(module)}) imports {imported} (tier {tier(imported)})"
        for module, imported in every_import(MODULES)
        if imported in MODULES and imported not in PACKAGES and tier(imported) > tier(module)
    ]
    assert not wrong


def circles(arrows: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Returns the groups of modules in which each reaches every other (Tarjan 1972)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for other in sorted(arrows.get(module, ())):
            if other not in numbers:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(arrows):
        if module not in numbers:
            visit(module)
    return found


def test_no_circle_of_imports() -> None:
    """Neither when the program runs nor for types alone: imports under TYPE_CHECKING and in functions count."""
    arrows = {
        module: {imported for imported, _ in imports(path) if imported in MODULES and imported != module}
        - {module.rpartition(".")[0]}  # a module's own package is there before it
        for module, path in MODULES.items()
    }
    assert circles(arrows) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]


def test_a_role_reaches_another_only_through_its_client() -> None:
    wrong = []
    for module, imported in every_import(filter(role_of, MODULES)):
        other = role_of(imported)
        if other is None or other == role_of(module) or imported not in MODULES:
            continue
        if imported.split(".")[3:] != [] and "client" not in imported.split("."):
            wrong.append(f"{module} imports {imported}; use adamctl.roles.{other}.client")
    assert not wrong


def test_cores_are_pure() -> None:
    cores = list(filter(is_core, MODULES))
    wrong = [f"{module} imports {imported}" for module, imported in every_import(cores) if is_impure(imported)]
    assert cores and not wrong


def is_impure(module: str) -> bool:
    return module.split(".")[0] in IMPURE


@pytest.mark.parametrize("role", ROLES)
def test_all_instructions_of_a_role_derive_from_one_class(role: str) -> None:
    paths = [path for module, path in MODULES.items() if is_core(module) and role_of(module) == role]
    trees = [parsed(path) for path in paths]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert sum(node.name == "Instruction" for node in classes) <= 1
    aliases = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    assert not any(ast.unparse(node.target).endswith("Instruction") for node in aliases)
    listed = {
        path.name
        for path, tree in zip(paths, trees, strict=True)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Instruction" for base in node.bases)
    }
    assert listed <= {"instructions.py"}, "all instructions of a role are listed in its core/instructions.py"
    assert sum(path.name == "instructions.py" for path in paths) <= 1


def test_cores_are_composed_of_parts_and_inherit_nothing() -> None:
    for module in filter(is_core, MODULES):
        for node in ast.walk(parsed(MODULES[module])):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Core"):
                assert not node.bases, f"{module}.{node.name} derives from {ast.unparse(node.bases[0])}"


def test_whoever_imports_a_core_loads_no_network_and_no_disk() -> None:
    """In a fresh interpreter, and whatever is imported on the way: the file itself may look innocent."""
    cores = [module for module in MODULES if is_core(module) or module.startswith("adamctl.optimizers")]
    if adapters_loaded_by(*cores):
        assert {core: found for core in cores if (found := adapters_loaded_by(core))} == {}


def adapters_loaded_by(*cores: str) -> list[str]:
    """Returns what a fresh interpreter has loaded that no core may load, once it has imported these modules."""
    program = "\n".join(f"import {core}" for core in cores) + "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    ours = {name for name in loaded & MODULES.keys() if tier(name) > 2 and MODULES[name].name != "__init__.py"}
    return sorted(ours | (loaded & LOADED_BY_NO_CORE))


def test_what_a_core_may_not_load_is_noticed() -> None:
    found = adapters_loaded_by("adamctl.roles.ps.store.lmdb_log")
    assert {"lmdb", "adamctl.roles.ps.store.lmdb_log"} <= set(found)


def test_low_tiers_do_no_io() -> None:
    low = [module for module in MODULES if tier(module) <= 2]
    wrong = [f"{module} imports {imported}" for module, imported in every_import(low) if does_io(imported)]
    assert low and not wrong


def does_io(module: str) -> bool:
    return module.split(".")[0] in {"asyncio", "socket", "lmdb", "subprocess"}


def test_files_stay_readable() -> None:
    wrong = []
    for module, path in MODULES.items():
        lines = path.read_text().count("\n")
        if lines > LINES_MAX:
            wrong.append(f"{path} has {lines} lines; split it")
        elif lines > LINES_LOOKED_AT and module not in LONG:
            wrong.append(f"{path} has {lines} lines; split it, or say in LONG why it is one thing")
    assert not wrong


def short_files() -> list[str]:
    """Returns the files of fewer than 60 lines, without what says only what is in a folder."""
    paths = [path for path in MODULES.values() if path.name != "__init__.py"]
    return [path.relative_to(ROOT).as_posix() for path in paths if path.read_text().count("\n") < LINES_MIN]


def test_a_short_file_has_a_reason() -> None:
    without = [name for name in short_files() if not any(fnmatch(name, pattern) for pattern in SHORT)]
    assert without == [], "merge it with what it is one thing with, or say in SHORT why it stands alone"


@pytest.mark.parametrize("pattern", SHORT)
def test_the_reason_of_a_short_file_is_needed(pattern: str) -> None:
    assert any(fnmatch(name, pattern) for name in short_files()), f"{pattern} covers no short file any more"


def test_every_package_is_installed() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in MODULES.items()}
    assert found == listed
