"""A checkpoint is finished or invisible, whatever happens while it is written; damage is found and named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.model.description import Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import Manifest, ManifestFile, ManifestTensor
from adamctl.roles.coordinator.checkpoint.writer import check_goes_on, check_resumable
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.manifest_bytes import FORMAT_VERSION, decode_manifest, encode_manifest
from adamctl.wire.messages import CheckpointFile
from tests.roles.manifests_for_tests import as_version_1, cuts, flips

EXPERIMENT = Experiment(name="small", model=Model((8,), (Softmax(4),)))
LAYOUT = build_layout(EXPERIMENT.model, 1)
SNAPSHOT = RunSnapshot(passes=[(1, 64, [(0, 32), (48, 64)])], pass_examples=96, examples=144, train_seconds=2.5)


def seen(top1: float, split: str = "test") -> EvaluationResult:
    return EvaluationResult(passes=1, progress=0.5, train_seconds=1.0, split=split, top1=top1, loss=0.5)


class CrashedError(BaseException):
    """The process ends here."""


def described(
    number: int, complete: bool = False, experiment: Experiment = EXPERIMENT
) -> Callable[[tuple[ManifestFile, ...]], Manifest]:
    return lambda files: Manifest(
        format_version=FORMAT_VERSION,
        job="small",
        number=number,
        seed=7,
        layout_hash=LAYOUT.hash,
        servers_expected=1,
        tensors=tuple(ManifestTensor.of(tensor) for tensor in LAYOUT.tensors),
        files=files,
        state=SNAPSHOT,
        experiment=experiment,
        complete=complete,
    )


def written(folder: Path, *contents: bytes) -> list[CheckpointFile]:
    """What servers leave behind before the coordinator finishes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, content in enumerate(contents):
        name = f"shards-ps-{index}.adam"
        (folder / f".{name}.partial").write_bytes(content)
        checksum = blake2b(content, digest_size=16).hexdigest()
        files.append(CheckpointFile(name, f".{name}.partial", len(content), checksum, (index,)))
    return files


def finish(checkpoints: Path, number: int, *, complete: bool = False) -> Path:
    folder = manifest.checkpoint_folder(checkpoints, number)
    manifest.finish(folder, written(folder, b"first part", b"second part"), described(number, complete))
    return folder


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = finish(tmp_path, 1)
    assert manifest.finished(tmp_path) == [folder]
    found = manifest.verify(folder)
    assert found == described(1)(found.files)
    assert found.state == SNAPSHOT
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "shards-ps-0.adam", "shards-ps-1.adam"]


def test_a_crash_at_any_step_leaves_the_old_one_and_the_new_one_whole_or_invisible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_seen = 0
    for crash_at in range(100):
        checkpoints = tmp_path / str(crash_at)
        old = finish(checkpoints, 1)
        folder = manifest.checkpoint_folder(checkpoints, 2)
        files = written(folder, b"first part", b"second part")
        steps = 0

        def counted(function: Callable[..., Any], at: int = crash_at) -> Callable[..., Any]:
            def step(*arguments: Any, **options: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps > at:
                    raise CrashedError
                return function(*arguments, **options)

            return step

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", counted(os.replace))
            patched.setattr(os, "fsync", counted(os.fsync))
            try:
                manifest.finish(folder, files, described(2))
                crashed = False
            except CrashedError:
                crashed = True
        visible = manifest.finished(checkpoints)
        assert old in visible
        for path in visible:
            manifest.verify(path)
        manifest.clean(checkpoints, keep=5)
        assert sorted(checkpoints.iterdir()) == visible, "what is unfinished is removed"
        steps_seen = max(steps_seen, steps)
        if not crashed:
            assert manifest.find_latest(checkpoints) == folder
            break
    assert steps_seen >= 6


def test_nothing_becomes_visible_while_a_file_is_missing_or_short(tmp_path: Path) -> None:
    for spoil in (lambda path: path.unlink(), lambda path: path.write_bytes(b"fir")):
        folder = tmp_path / "000001"
        files = written(folder, b"first part", b"second part")
        spoil(folder / files[0].temporary_name)
        with pytest.raises(DamagedDataError, match=r"shards-ps-0.*expected 10 bytes"):
            manifest.finish(folder, files, described(1))
        assert manifest.finished(tmp_path) == []
        manifest.abandon(folder)
        assert not folder.exists()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        finish(tmp_path, number)
    manifest.clean(tmp_path, keep=2)
    assert [path.name for path in manifest.finished(tmp_path)] == ["000004", "000005"]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda folder: (folder / "shards-ps-1.adam").unlink(), "expected 11 bytes, found nothing"),
        (lambda folder: (folder / "shards-ps-1.adam").write_bytes(b"short"), "expected 11 bytes, found 5 bytes"),
        (lambda folder: (folder / "shards-ps-1.adam").write_bytes(b"second Part"), "expected checksum"),
        (lambda folder: (folder / "manifest.json").write_text('{"job": 3}'), "manifest.json"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\x00" * 30), "manifest.json"),
        (lambda folder: replace_in(folder / "manifest.json", b'"small"', b'"sm\xffll"'), "json: 'utf-8' codec"),
        (lambda folder: (folder / "manifest.json").unlink(), "never finished"),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, spoil: Callable[[Path], object], expected: str) -> None:
    folder = finish(tmp_path, 1)
    spoil(folder)
    with pytest.raises(DamagedDataError, match=expected):
        manifest.verify(folder)


@pytest.mark.parametrize("damaged", [flips, cuts])
def test_every_flipped_bit_and_every_cut_of_a_manifest_is_found(
    tmp_path: Path, damaged: Callable[[bytes], Iterable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finish(tmp_path, 1)
    manifest.read_manifest(folder)
    for content in damaged((folder / "manifest.json").read_bytes()):
        monkeypatch.setattr(Path, "read_bytes", lambda path, content=content: content)
        with pytest.raises(DamagedDataError, match=r"manifest\.json"):
            manifest.read_manifest(folder)


def test_a_manifest_of_before_there_were_checksums_is_read_or_refused_whatever_is_flipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finish(tmp_path, 1)
    found, old = manifest.read_manifest(folder), as_version_1((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(old)
    assert manifest.verify(folder) == msgspec.structs.replace(found, format_version=1)
    refused = 0
    for content in flips(old):
        monkeypatch.setattr(Path, "read_bytes", lambda path, content=content: content)
        try:
            manifest.read_manifest(folder)
        except DamagedDataError:
            refused += 1
    assert refused > len(old)


def test_the_best_stays_besides_the_newest(tmp_path: Path) -> None:
    for number, top1, evaluated in ((1, 0.6, True), (2, 0.9, True), (3, 0.95, False), (4, 0.7, True), (5, 0.8, True)):
        folder = finish(tmp_path, number)
        state = RunSnapshot(passes=[], pass_examples=96, evaluations=[seen(top1, "validation")], evaluated=evaluated)
        found = msgspec.structs.replace(manifest.read_manifest(folder), state=state)
        (folder / "manifest.json").write_bytes(encode_manifest(found))
    best = manifest.best(manifest.finished(tmp_path))
    assert best is not None and (best[0].name, best[1].top1) == ("000002", 0.9)
    manifest.clean(tmp_path, keep=2, keep_best=True)
    assert [path.name for path in manifest.finished(tmp_path)] == ["000002", "000004", "000005"]
    manifest.clean(tmp_path, keep=2)
    assert [path.name for path in manifest.finished(tmp_path)] == ["000004", "000005"]


def test_the_test_part_makes_nothing_the_best(tmp_path: Path) -> None:
    folder = finish(tmp_path, 1)
    state = RunSnapshot(passes=[], pass_examples=96, evaluations=[seen(0.9)], evaluated=True)
    found = msgspec.structs.replace(manifest.read_manifest(folder), state=state)
    (folder / "manifest.json").write_bytes(encode_manifest(found))
    assert manifest.best([folder]) is None


class TestResume:
    def test_none_is_a_fresh_start(self, tmp_path: Path) -> None:
        finish(tmp_path / "checkpoints", 1)
        assert manifest.find_resume("none", tmp_path) is None

    def test_auto_takes_the_newest_of_this_run_else_of_the_newest_earlier_one(self, tmp_path: Path) -> None:
        finish(tmp_path / "001" / "checkpoints", 9)
        earlier = finish(tmp_path / "002" / "checkpoints", 1)
        (tmp_path / "003").mkdir()
        run = tmp_path / "004"
        assert manifest.find_resume("auto", run) == earlier
        own = finish(run / "checkpoints", 1)
        assert manifest.find_resume("auto", run) == own

    def test_auto_takes_a_complete_run_which_goes_on_only_if_more_is_asked_for(self, tmp_path: Path) -> None:
        folder = finish(tmp_path / "001" / "checkpoints", 1, complete=True)
        assert manifest.find_resume("auto", tmp_path / "002") == folder
        check = {"passes": 2}, {"passes": 3}, {"passes": 9, "target": 0.8}, {"passes": 9, "target": 0.7}
        whole = RunSnapshot(passes=[(1, 96, [(0, 96)])], pass_examples=96, evaluations=[seen(0.7), seen(0.75)])
        found = msgspec.structs.replace(manifest.read_manifest(folder), state=whole)
        refused = [self.refusal(found, folder, **train) for train in check]
        assert refused[1] == refused[2] == ""
        assert "has finished its 2 passes" in refused[0] and "--passes 3" in refused[0]
        assert "reached its target of 0.7" in refused[3]

    def test_a_run_that_lost_patience_goes_on_with_another_one(self, tmp_path: Path) -> None:
        evaluations = [seen(0.7, "validation"), seen(0.6, "validation"), seen(0.65, "validation")]
        state = RunSnapshot(passes=[(3, 0, [])], pass_examples=96, evaluations=evaluations)
        folder = finish(tmp_path / "001" / "checkpoints", 1, complete=True)
        found = msgspec.structs.replace(manifest.read_manifest(folder), state=state)
        data = DataConfig(validation=0.1)
        assert "2 evaluations without improvement" in self.refusal(found, folder, data, patience=2)
        assert self.refusal(found, folder, data, patience=3) == self.refusal(found, folder, data) == ""

    def refusal(self, found: Manifest, folder: Path, data: DataConfig = DataConfig(), **train: Any) -> str:
        """What keeps a run from going on from this checkpoint; nothing if it may."""
        try:
            check_goes_on(found, folder, msgspec.structs.replace(EXPERIMENT, data=data, train=TrainConfig(**train)))
        except ConfigurationError as error:
            return str(error)
        return ""

    def test_auto_does_not_pass_over_a_run_whose_newest_manifest_is_damaged(self, tmp_path: Path) -> None:
        """Reading it says what is wrong."""
        folder = finish(tmp_path / "001" / "checkpoints", 1, complete=True)
        replace_in(folder / "manifest.json", b'"examples": 144', b'"examples": 145')
        assert manifest.find_resume("auto", tmp_path / "002") == folder
        with pytest.raises(DamagedDataError, match=r"manifest\.json: its checksum is wrong"):
            manifest.verify(folder)

    def test_auto_without_anything_is_a_fresh_start(self, tmp_path: Path) -> None:
        assert manifest.find_resume("auto", tmp_path / "missing" / "001") is None

    def test_a_path_is_a_checkpoint_or_a_run_folder(self, tmp_path: Path) -> None:
        first, second = finish(tmp_path / "checkpoints", 1), finish(tmp_path / "checkpoints", 2)
        assert manifest.find_resume(str(first), tmp_path / "x") == first
        assert manifest.find_resume(str(tmp_path), tmp_path / "x") == second
        with pytest.raises(ConfigurationError, match="found none"):
            manifest.find_resume(str(tmp_path / "elsewhere"), tmp_path / "x")

    def test_another_model_is_refused_by_the_names_of_its_tensors(self, tmp_path: Path) -> None:
        folder = finish(tmp_path, 1)
        other = build_layout(Model((8,), (Softmax(5),)), 1)
        with pytest.raises(ConfigurationError, match=r"softmax1\.bias, softmax1\.weight"):
            check_resumable(manifest.read_manifest(folder), folder, EXPERIMENT, other)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"history": 5}, r"optimizer\.history = 10; found 5; .* train\.warmstart_from="),
            ({"weight_decay": 0.5}, r"optimizer\.weight_decay = 0\.0; found 0\.5"),
            ({"batch": 50}, r"optimizer\.batch = full; found 50"),
            ({"settings": {"step": 2}}, r"optimizer\.settings = \{\}; found \{'step': 2\}"),
            ({"change_tolerance": 0.0, "gradient_tolerance": 0.0, "evaluations_max": 5}, ""),
        ],
    )
    def test_a_batch_algorithm_goes_on_with_what_its_history_is_of(
        self, tmp_path: Path, change: dict[str, Any], said: str
    ) -> None:
        made, wanted = (
            msgspec.structs.replace(EXPERIMENT, optimizer=OptimizerConfig(type="lbfgs", **one)) for one in ({}, change)
        )
        found = described(1, experiment=made)(())
        with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
            check_resumable(found, tmp_path, wanted, LAYOUT)


def test_one_from_before_there_were_batch_algorithms_is_read(tmp_path: Path) -> None:
    folder = finish(tmp_path, 1)
    path = folder / "manifest.json"
    content = decode_manifest(path.read_bytes())
    new = ("batch", "history", "gradient_tolerance", "change_tolerance", "evaluations_max", "l1", "settings")
    for key in new:
        del content["experiment"]["optimizer"][key]
    del content["checksum"]
    path.write_bytes(encode_manifest(content))
    assert manifest.verify(folder).experiment == EXPERIMENT


def test_settings_of_another_package_are_read_back(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(type="descent", settings={"step": 1.0, "scales": (0.5, 2), "on": True})
    folder = manifest.checkpoint_folder(tmp_path, 1)
    experiment = msgspec.structs.replace(EXPERIMENT, optimizer=optimizer)
    manifest.finish(folder, written(folder, b"part"), described(1, experiment=experiment))
    assert manifest.verify(folder).experiment == experiment
