"""The lock of CI: each file by its hash, all that pyproject wants, nothing beneath its floors."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType
from typing import Any

import pytest

from tests.documents import ROOT

HASH = "--hash=sha256:" + "0" * 64


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    specification = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_lock_holds_all_that_is_wanted_by_hash(audit: ModuleType) -> None:
    assert audit.problems(audit.LOCK.read_text(), project()) == []
    assert len(audit.locked(audit.LOCK.read_text())) > 50


def test_what_reads_images_and_weights_of_others_has_no_hole_that_is_known(audit: ModuleType) -> None:
    """Pillow before 13.0: CVE-2026-96639, CVE-2026-112398; torch before 2.10: CVE-2026-24747, before 2.13: others."""
    extras = project()["optional-dependencies"]
    for name in ("image", "examples"):
        assert audit.floors({"dependencies": extras[name]})["pillow"] >= (13, 0)
    assert audit.floors({"dependencies": extras["torch"]})["torch"] >= (2, 13)


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (f"pillow==12.3.0 {HASH}", "pillow 12.3.0 is beneath 13.0, the floor"),
        ("pillow==13.0.0", "pillow has no hash"),
        (f"rich==13.7 {HASH}", "pillow is not in the lock"),
        (f"pillow==13.0.0 ; python_version < '3.12' \\\n    {HASH}\n    # via adamctl", None),
    ],
)
def test_what_is_wrong_is_said(audit: ModuleType, lock: str, problem: str | None) -> None:
    wanted = {"dependencies": [], "optional-dependencies": {"image": ["Pillow>=13.0"], "torch": ["torch>=2.13"]}}
    assert audit.problems(lock, wanted) == ([] if problem is None else [problem])


def test_a_version_that_is_not_pinned_is_none(audit: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"expected NAME==VERSION"):
        audit.locked(f"pillow>=13.0 {HASH}")


@pytest.mark.parametrize("answer", ["", "no JSON", "{}"])
def test_a_service_that_does_not_answer_is_told_from_one_that_knows_of_nothing(
    audit: ModuleType, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: audit.subprocess.CompletedProcess([], 1, answer, ""))
    assert audit.holes(audit.LOCK) is None
    known = '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}, {"name": "b"}]}'
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: audit.subprocess.CompletedProcess([], 1, known, ""))
    assert audit.holes(audit.LOCK) == ["a 1: CVE-1"]


HOLE = '{"dependencies": [{"name": "numpy", "version": "2.0", "vulns": [{"id": "CVE-2026-1"}]}]}'
CLEAN = '{"dependencies": [{"name": "numpy", "version": "2.0", "vulns": []}]}'
SILENT = ""


@pytest.mark.parametrize(
    ("of_known", "of_lock", "exit_code", "lines"),
    [
        (HOLE, CLEAN, 0, ["0 problems; pip-audit's service asked"]),
        (HOLE, HOLE, 1, ["numpy 2.0: CVE-2026-1", "1 problems; pip-audit's service asked"]),
        (HOLE, SILENT, 1, ["the service stopped answering", "1 problems; pip-audit's service asked"]),
        (CLEAN, HOLE, 0, ["0 problems; pip-audit's service does not answer here"]),
        (SILENT, HOLE, 0, ["0 problems; pip-audit's service does not answer here"]),
    ],
)
def test_what_the_service_answers_decides(
    audit: ModuleType,
    of_known: str,
    of_lock: str,
    exit_code: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is first asked about a version with a hole, then about the lock; one that knows of none there is no judge."""

    def answer(command: list[str], **_: Any) -> Any:
        assert "--require-hashes" in command
        asked = audit.Path(command[-1])
        about_lock = asked == audit.LOCK
        assert about_lock or asked.read_text() == audit.KNOWN_HOLE
        return audit.subprocess.CompletedProcess(command, 1, of_lock if about_lock else of_known, "")

    monkeypatch.setattr(audit.subprocess, "run", answer)
    assert audit.main() == exit_code
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(lines) and all(part in line for part, line in zip(lines, said, strict=True)), said
