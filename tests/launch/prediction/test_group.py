"""Several processes predict together; one that dies, or fails, is named, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from adamctl.errors import ConfigurationError, CustomError, DamagedDataError, RunFailedError
from adamctl.kernels.backend import installed
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Array
from adamctl.launch.prediction.forward import WholeNetwork
from adamctl.launch.prediction.group import PartitionGroup, Setting
from adamctl.model.custom.registry import described
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.partition.prediction import prediction_plan
from adamctl.model.partition.work import held_elements
from tests.custom_layers import NativeRelu, RowSums
from tests.launch.prediction.checkpoints import Failing, WholeBatches, write_checkpoint

MODEL = Model(
    (11, 9, 2),
    (
        Conv2D(4, 3, padding="same"), MaxPool2D(3, 2), described(NativeRelu()), described(RowSums(3)),
        described(Failing()), Dense(7, "relu"), Softmax(5),
    ),
)  # fmt: skip
BATCH = 4


def setting_of(folder: Path, partitions: int = 2, flights: int = 2) -> Setting:
    return Setting(folder, prediction_plan(MODEL, partitions, {}), BATCH, flights, 1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("made") / "000001", MODEL)


@pytest.fixture(scope="module")
def group(folder: Path) -> Iterator[PartitionGroup]:
    made = PartitionGroup(setting_of(folder))
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(folder: Path) -> WholeNetwork:
    return WholeNetwork(MODEL, folder, BATCH)


def parts_of(*sizes: int) -> list[Array]:
    generator = np.random.default_rng(len(sizes))
    return [generator.standard_normal((size, *MODEL.input)).astype(np.float32) for size in sizes]


def are_gone(pids: tuple[int, ...]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_outputs_are_those_of_one_process_in_the_same_order(group: PartitionGroup, whole: WholeNetwork) -> None:
    """Layers of the user's own too; parts are smaller now and then, and more than may be open."""
    parts = parts_of(BATCH, BATCH, 1, BATCH, 3, BATCH, BATCH, 2)
    for found, expected in zip(group.outputs(parts), whole.outputs(parts), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)
    assert group.compute_s > 0
    plan = setting_of(Path()).plan
    assert group.parameters_bytes == tuple(4 * held_elements(plan, one) for one in (0, 1))
    assert max(group.parameters_bytes) < 0.7 * 4 * held_elements(prediction_plan(MODEL, 1, {}), 0)
    assert list(group.outputs([])) == []


def test_no_more_parts_are_taken_than_flights_may_be_open(group: PartitionGroup) -> None:
    taken = 0

    def parts() -> Iterator[Array]:
        nonlocal taken
        for part in parts_of(*[BATCH] * 6):
            taken += 1
            yield part

    for number, _ in enumerate(group.outputs(parts()), 1):
        assert taken <= number + 2


def test_outputs_that_nobody_takes_leave_the_processes_as_they_were(group: PartitionGroup, whole: WholeNetwork) -> None:
    given_up = group.outputs(parts_of(*[BATCH] * 5))
    next(given_up)
    pids = group.pids
    with pytest.raises(ConfigurationError, match="take all outputs of the other prediction first"):
        next(group.outputs(parts_of(2)))
    given_up.close()
    (found,), (expected,) = group.outputs(parts_of(2)), whole.outputs(parts_of(2))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert group.pids == pids


def test_outputs_that_nobody_takes_need_no_processes_once_the_group_is_closed(group: PartitionGroup) -> None:
    """As where a command cannot print them: it ends the processes first."""
    given_up, left = group.outputs(parts_of(*[BATCH] * 5)), group.outputs(parts_of(*[BATCH] * 5))
    next(given_up)
    group.close()
    given_up.close()
    next(left)
    group.close()
    with pytest.raises(ConfigurationError, match="closed before all outputs of its prediction were taken"):
        next(left)
    assert len(list(group.outputs(parts_of(1)))) == 1


def test_parts_that_cannot_be_read_leave_the_processes_as_they_were(group: PartitionGroup) -> None:
    def parts() -> Iterator[Array]:
        yield from parts_of(BATCH, 1, BATCH)
        raise DamagedDataError("x.png: expected an image")

    list(group.outputs(parts_of(1)))
    pids, found = group.pids, list[Array]()
    with pytest.raises(DamagedDataError, match=r"x\.png"):
        found.extend(group.outputs(parts()))
    assert len(found) == 3  # those before it
    assert group.pids == pids and len(list(group.outputs(parts_of(1)))) == 1


def test_ctrl_c_ends_the_processes_while_they_compute(group: PartitionGroup) -> None:
    def parts() -> Iterator[Array]:
        yield from parts_of(BATCH)
        raise KeyboardInterrupt

    list(group.outputs(parts_of(1)))
    pids = group.pids
    with pytest.raises(KeyboardInterrupt):
        list(group.outputs(parts()))
    assert are_gone(pids) and group.pids == ()


def test_a_process_that_is_killed_is_named_and_the_next_prediction_starts_all_again(
    group: PartitionGroup, whole: WholeNetwork
) -> None:
    found = group.outputs(parts_of(*[BATCH] * 6))
    next(found)
    pids = group.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RunFailedError, match=rf"partition 1 of 2 \(process {pids[1]}\) ended .*: killed by SIGKILL"):
        list(found)
    assert are_gone(pids)
    (outputs,), (expected,) = group.outputs(parts_of(3)), whole.outputs(parts_of(3))
    np.testing.assert_allclose(outputs, expected, atol=2e-5)


def test_a_process_that_stays_stopped_is_named_and_one_that_goes_on_is_waited_for(
    group: PartitionGroup, whole: WholeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, looks = parts_of(*[BATCH] * 6), list[int]()
    status = psutil.Process.status

    def goes_on(process: psutil.Process) -> str:
        found = status(process)
        if found == psutil.STATUS_STOPPED:
            looks.append(process.pid)
            process.resume()
        return str(found)

    monkeypatch.setattr("adamctl.launch.prediction.group.SILENT_S", 0.05)
    found = group.outputs(parts)
    outputs, pids = [next(found)], group.pids
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "status", goes_on)
        os.kill(pids[0], signal.SIGSTOP)
        outputs.extend(found)
    for one, expected in zip(outputs, whole.outputs(parts), strict=True):
        np.testing.assert_allclose(one, expected, atol=2e-5)
    assert looks == [pids[0]]
    found = group.outputs(parts)
    next(found)
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(RunFailedError, match=rf"partition 1 of 2 \(process {pids[1]}\) is stopped"):
        list(found)
    assert are_gone(pids)


def test_a_layer_of_the_users_own_that_fails_is_named(group: PartitionGroup) -> None:
    with pytest.raises(CustomError, match=r"(?s)partition \d of 2: .*Failing.*upward.*too large for this layer"):
        list(group.outputs([part + 1e9 for part in parts_of(BATCH)]))
    assert group.pids == ()


@pytest.mark.skipif("numba" not in installed() or not can_compile(), reason="native calls are laid out")
def test_a_layer_that_cannot_be_laid_out_for_a_part_is_named(tmp_path: Path) -> None:
    model = Model((6, 5, 1), (described(WholeBatches(BATCH)), Dense(4, "relu"), Softmax(3)))
    folder = write_checkpoint(tmp_path / "000001", model)
    group = PartitionGroup(Setting(folder, prediction_plan(model, 2, {}), BATCH, 2, 1, 0))
    parts = [np.ones((size, *model.input), np.float32) for size in (BATCH, BATCH - 1)]
    with pytest.raises(CustomError, match=r"(?s)partition \d of 2: .*WholeBatches.*native_upward.*for 3 examples"):
        list(group.outputs(parts))
    assert group.pids == ()


@pytest.mark.parametrize(
    ("name", "error"),
    [("SharedMemory", MemoryError("cannot get 9 bytes")), ("Pipe", OSError(24, "Too many open files"))],
)
def test_what_the_system_refuses_is_said_and_leaves_nothing(
    folder: Path, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise error

    monkeypatch.setattr(f"adamctl.launch.prediction.group.{name}", refuse)
    group = PartitionGroup(setting_of(folder))
    with pytest.raises(RunFailedError, match=f"processes to predict with cannot be started: .*{error.args[-1]}"):
        group.start()
    assert group.pids == ()


def test_a_damaged_shard_is_named_by_the_process_that_holds_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "000001", MODEL)
    file = next(folder.glob("*.adam"))
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(bytes(content))
    group = PartitionGroup(setting_of(folder, 1))
    with pytest.raises(DamagedDataError, match=r"partition 0 of 1: .*the checksum of shard"):
        group.start()
    assert group.pids == ()


def test_a_group_that_is_dropped_leaves_nothing(folder: Path) -> None:
    group = PartitionGroup(setting_of(folder, 1, 1))
    group.start()
    pids = group.pids
    del group
    assert are_gone(pids)
