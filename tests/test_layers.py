"""Imports go only downward (ARCHITECTURE.md), a role reaches another only through its client, cores are pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IMPURE = {"asyncio", "time", "random", "os", "socket", "lmdb", "threading", "subprocess"}
ROLES = ("ps", "worker", "data", "controller", "coordinator")
TIER_OF_PACKAGE = {
    "adamctl.errors": 0,
    "adamctl.importing": 0,
    "adamctl.config": 0,
    "adamctl.model": 0,
    "adamctl.wire": 1,
    "adamctl.kernels": 1,
    "adamctl.net": 3,
    "adamctl.cli": 5,
    "adamctl.live": 5,
    "adamctl.launch": 5,
    "adamctl.bench": 5,
    "adamctl.api": 5,
    "adamctl.__main__": 5,
    "adamctl": 5,
}
SHELLS = {"server", "role", "driver", "registry"}
LOADED_BY_NO_CORE = {"asyncio", "socket", "uvloop", "lmdb"}
LINES_LOOKED_AT, LINES_MAX = 400, 600
LONG: dict[str, str] = {}
"""Modules of more than 400 lines, and why each is one thing."""


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
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in top
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in top


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_downward(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        if imported not in MODULES or imported in ("adamctl", "adamctl.roles", "adamctl.kernels"):
            continue
        assert tier(imported) <= tier(module), (
            f"{module} (tier {tier(module)}) imports {imported} (tier {tier(imported)})"
        )


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


@pytest.mark.parametrize("module", [module for module in MODULES if role_of(module)])
def test_a_role_reaches_another_only_through_its_client(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        other = role_of(imported)
        if other is None or other == role_of(module) or imported not in MODULES:
            continue
        allowed = imported.split(".")[3:] in ([], ["client"]) or "client" in imported.split(".")
        assert allowed, f"{module} imports {imported}; use adamctl.roles.{other}.client"


@pytest.mark.parametrize("module", [module for module in MODULES if is_core(module)])
def test_cores_are_pure(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        assert imported.split(".")[0] not in IMPURE, f"{module} imports {imported}"


@pytest.mark.parametrize("role", ROLES)
def test_all_instructions_of_a_role_derive_from_one_class(role: str) -> None:
    paths = [path for module, path in MODULES.items() if is_core(module) and role_of(module) == role]
    trees = [ast.parse(path.read_text()) for path in paths]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert sum(node.name == "Instruction" for node in classes) <= 1
    aliases = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    assert not any(ast.unparse(node.target).endswith("Instruction") for node in aliases)


def test_cores_are_composed_of_parts_and_inherit_nothing() -> None:
    for module in filter(is_core, MODULES):
        for node in ast.walk(ast.parse(MODULES[module].read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Core"):
                assert not node.bases, f"{module}.{node.name} derives from {ast.unparse(node.bases[0])}"


def test_whoever_imports_a_core_loads_no_network_and_no_disk() -> None:
    """In a fresh interpreter, and whatever is imported on the way: the file itself may look innocent."""
    cores = [module for module in MODULES if is_core(module)]
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


@pytest.mark.parametrize("module", [module for module in MODULES if tier(module) <= 2])
def test_low_tiers_do_no_io(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        assert imported.split(".")[0] not in {"asyncio", "socket", "lmdb", "subprocess"}, f"{module} imports {imported}"


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_readable(module: str) -> None:
    lines = MODULES[module].read_text().count("\n")
    assert lines <= LINES_MAX, f"{MODULES[module]} has {lines} lines; split it"
    assert lines <= LINES_LOOKED_AT or module in LONG, (
        f"{MODULES[module]} has {lines} lines; split it, or say in LONG why it is one thing"
    )


def test_every_package_is_installed() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in MODULES.items()}
    assert found == listed
