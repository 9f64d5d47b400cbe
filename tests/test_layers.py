"""Imports go only downward (ARCHITECTURE.md), a role reaches another only through its client, cores are pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
        if role_of(module) is not None and role_of(module) == role_of(imported):
            continue
        assert tier(imported) <= tier(module), (
            f"{module} (tier {tier(module)}) imports {imported} (tier {tier(imported)})"
        )


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


@pytest.mark.parametrize("module", [module for module in MODULES if tier(module) <= 2])
def test_low_tiers_do_no_io(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        assert imported.split(".")[0] not in {"asyncio", "socket", "lmdb", "subprocess"}, f"{module} imports {imported}"


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_readable(module: str) -> None:
    lines = MODULES[module].read_text().count("\n")
    assert lines <= 400, f"{MODULES[module]} has {lines} lines; split it"


def test_every_package_is_installed() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in MODULES.items()}
    assert found == listed
