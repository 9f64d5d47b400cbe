"""The documents as a site: its links, its tables of contents, and that Sphinx has no complaint."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = spec_from_file_location("site_of_documents", ROOT / "docs" / "conf.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def test_links_that_leave_the_folder_lead_to_the_repository(site: ModuleType) -> None:
    index, format_ = ROOT / "docs" / "README.md", ROOT / "docs" / "formats" / "wire.md"
    assert site.outside("runs.md", index) == "runs.md"
    assert site.outside("../groups.md", format_) == "../groups.md"
    assert site.outside("../README.md", index) == f"{site.REPOSITORY}/README.md"
    assert site.outside("../examples/by_hand.md", index) == f"{site.REPOSITORY}/examples/by_hand.md"
    assert site.outside("live.svg", index) == f"{site.REPOSITORY}/docs/live.svg"
    assert site.outside("https://keepachangelog.com", index) == "https://keepachangelog.com"


def test_every_document_is_in_the_tables_of_contents_once(site: ModuleType) -> None:
    found = site.contents((ROOT / "docs" / "README.md").read_text())
    listed = [line for line in found.splitlines() if line and not line.startswith(("`", ":"))]
    documents = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(listed) == documents - {"README"} and len(listed) == len(set(listed))
    assert ":caption: To use it" in found and ":caption: Decisions" in found


def test_every_picture_and_file_beside_the_documents_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    files = {path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".svg", ".json", ".yml")}
    assert len(files) >= 5 and {name for name in files if f"]({name})" not in index} == set()


@pytest.mark.slow
def test_sphinx_has_no_complaint(tmp_path: Path) -> None:
    if any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("the extra docs is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "README.html" in (tmp_path / "site" / "index.html").read_text()
