"""Compiled kernels lie in a folder named by all of their sources: a changed helper never meets old code."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adamctl.kernels import backend, kernel_cache


def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "compiled"
    folder.mkdir(exist_ok=True)
    (folder / "tiles.py").write_text("one = 1\n")
    (folder / "direct.py").write_text("two = 2\n")
    return folder


def test_any_change_of_a_source_names_another_folder(tmp_path):
    source = sources(tmp_path)
    first = kernel_cache.source_hash(source)
    assert kernel_cache.source_hash(source) == first
    (source / "tiles.py").write_text("one = 3\n")
    second = kernel_cache.source_hash(source)
    (source / "new.py").write_text("")
    assert len({first, second, kernel_cache.source_hash(source)}) == 3


def test_so_does_a_change_of_what_compiled_modules_take_constants_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, constants = kernel_cache._SOURCE, tmp_path / "mix.py"
    taken = {
        name.removeprefix("adamctl.")
        for path in compiled.glob("*.py")
        for name in re.findall(r"^from (adamctl\.kernels\.[\w.]+) import", path.read_text(), re.MULTILINE)
        if not name.startswith("adamctl.kernels.compiled")
    }
    named = {".".join(path.with_suffix("").parts[-3:]) for path in kernel_cache.BAKED_IN}
    assert named and named == taken
    monkeypatch.setattr(kernel_cache, "BAKED_IN", (constants,))
    found = []
    for text in ("one = 1\n", "one = 2\n"):
        constants.write_text(text)
        found.append(kernel_cache.source_hash(sources(tmp_path)))
    assert found[0] != found[1]


def test_folders_of_other_versions_go_once_they_are_not_used(tmp_path):
    source, parent = sources(tmp_path), tmp_path / "cache"
    old, recent = (parent / f"{kernel_cache.PREFIX}{name}" for name in ("old", "recent"))
    unrelated = parent / "unrelated"
    for folder in (old, recent, unrelated):
        folder.mkdir(parents=True)
        (folder / "code.nbc").write_bytes(b"")
    for folder in (old, unrelated):
        os.utime(folder, (0, 0))
    folder = kernel_cache.choose_folder(parent, source)
    assert folder.is_dir()
    assert sorted(parent.iterdir()) == sorted((folder, recent, unrelated))
    os.utime(folder, (0, 0))
    assert kernel_cache.choose_folder(parent, source) == folder


@pytest.mark.slow
@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
def test_a_changed_helper_is_compiled_anew(tmp_path):
    """The kernel's own file stays as it is: numba alone would go on with what it compiled before."""
    here = Path(kernel_cache.__file__).parents[1]
    package = tmp_path / "adamctl"
    for part in ("errors.py", "__init__.py"):
        package.mkdir(exist_ok=True)
        shutil.copy(Path(sys.modules["adamctl"].__file__ or "").parent / part, package / part)
    for part in ("", "compiled", "numeric"):
        (package / "kernels" / part).mkdir(exist_ok=True)
        for path in (here / "kernels" / part).glob("*.py"):
            shutil.copy(path, package / "kernels" / part / path.name)
    helpers, environment = package / "kernels" / "compiled" / "elementwise.py", dict(os.environ)
    environment |= {kernel_cache.VARIABLE: str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    code = (
        "import adamctl.kernels.backend as b, numpy as np; c = b.compiled('use'); "
        "e = np.ones((1, 1), np.float32); c.run(e); print(e[0, 0])"
    )
    (helpers.parent / "use.py").write_text(
        "from adamctl.kernels.compiled.jit import OUT2, kernel\n"
        "from adamctl.kernels.compiled.elementwise import change\n"
        "@kernel((OUT2,))\ndef run(x):\n    change(x)\n"
    )
    for value in (2, 3):
        helpers.write_text(
            f"from adamctl.kernels.compiled.jit import inline\n@inline\ndef change(x):\n    x[0, 0] = {value}\n"
        )
        for _ in range(2):
            printed = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment, cwd=tmp_path)
            assert printed.split() == [f"{value}.0"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


WHAT_COMPILING_NEEDS = "numba.np.arraymath"
"""A module that numba imports before it compiles anything, which takes long."""
FIND_SQUARES = (
    "import sys; import numpy as np; import adamctl.kernels.backend as backend; {load}; "
    "losses = backend.compiled('losses'); "
    "found = losses.mean_squared_error(np.full((2, 2), 3, np.float32), np.zeros((2, 2), np.float32)); "
    "print(*found, {module!r} in sys.modules)"
)


def squares(folder: Path, load: str) -> list[str]:
    line = [sys.executable, "-c", FIND_SQUARES.format(load=load, module=WHAT_COMPILING_NEEDS)]
    environment = {**os.environ, kernel_cache.VARIABLE: str(folder)}
    return subprocess.check_output(line, text=True, env=environment, timeout=600).split()


@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
def test_a_process_that_only_loads_does_without_what_compiling_needs(tmp_path: Path) -> None:
    load = "backend.load(['losses.mean_squared_error'])"
    assert [squares(tmp_path, load) for _ in range(2)] == [["18.0", "0", "True"], ["18.0", "0", "False"]]


@pytest.mark.slow
@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
def test_every_kernel_can_be_loaded_without_what_compiling_needs(tmp_path: Path) -> None:
    assert [squares(tmp_path, "backend.warm_up()")[2] for _ in range(2)] == ["True", "False"]


def fill(out: Any) -> None:
    out[:] = 5


def filled_by(kind: str) -> tuple[float, bool]:
    """Returns what a kernel that is declared anew computes, and whether its code was kept."""
    jit = backend.compiled("jit")
    if kind == "custom":
        declared = jit.custom_kernel(fill, ("void(float32[::1])",), True, "stamp")
    else:
        declared = jit.kernel((jit.OUT1,))(fill)
    out = np.zeros(1, np.float32)
    declared(out)
    return float(out[0]), bool(declared.stats.cache_hits)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that code is kept in during a test."""
    backend.compiled("jit")
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path / f"{kernel_cache.PREFIX}test"))
    return tmp_path / f"{kernel_cache.PREFIX}test"


@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
@pytest.mark.parametrize("kind", ["own", "custom"])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_damaged_files_are_made_anew(kept: Path, kind: str, ending: str, share: float) -> None:
    assert [filled_by(kind) for _ in range(2)] == [(5, False), (5, True)]
    (damaged,) = kept.glob(f"*.{ending}")
    content = damaged.read_bytes()
    damaged.write_bytes(content[: int(len(content) * share)])
    assert [filled_by(kind) for _ in range(2)] == [(5, False), (5, True)]


@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
@pytest.mark.parametrize("kind", ["own", "custom"])
@pytest.mark.parametrize("what", ["_save_index", "_save_data"])
def test_a_full_disk_only_keeps_nothing(kept: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(f"numba.core.caching.IndexDataCacheFile.{what}", save)
        assert [filled_by(kind) for _ in range(2)] == [(5, False)] * 2
    assert [filled_by(kind) for _ in range(2)] == [(5, False), (5, True)]


@pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
@pytest.mark.parametrize("kind", ["own", "custom"])
def test_processors_of_two_kinds_share_no_file(kept: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks do nothing, one could keep its code under the name that the other's index says."""
    jit = backend.compiled("jit")
    names = []
    for features in ("+one", "+other"):
        monkeypatch.setattr("numba.core.codegen.get_host_cpu_features", lambda found=features: found)
        monkeypatch.setattr(jit, "_PROCESSOR", jit._processor())
        before = set(kept.glob("*"))
        assert filled_by(kind) == (5, False)
        names.append({path.name for path in set(kept.glob("*")) - before})
    assert len(names[0]) == len(names[1]) == 3, "index, code and lock"


def test_numba_may_be_half_imported_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path))
    kernel_cache._prepare.cache_clear()
    try:
        kernel_cache.prepare()
        assert Path(os.environ[kernel_cache.VARIABLE]).parent == tmp_path
    finally:
        kernel_cache._prepare.cache_clear()
