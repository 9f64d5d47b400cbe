"""Batches as a client hands them out: received whole, scaled to the bit, in its arrays or the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ProtocolError
from adamctl.roles.data.client import batches
from adamctl.roles.data.client.data_client import FILE_ORDER
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.scaling import Scaling, scaling_for
from adamctl.wire.messages import DataReadReply
from tests.roles.data.data_servers import TINY, WAIT_S, Farm
from tests.roles.data.orders import whole_pass


async def test_examples_are_received_into_the_callers_arrays(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(TINY, (4, 4, 1), 7)
    for length in (3, 4, 20):  # with and without padding before the labels
        images, labels = np.empty((length, 4, 4, 1), np.float32), np.empty(length, np.int32)
        batch = await client.read(data.dataset, "test", FILE_ORDER, 0, length, into=(images, labels))
        assert batch.images is images
        assert images[:, 3, 3, 0].tolist() == list(range(100, 100 + length))
        assert labels.tolist() == [(100 + number) % 10 for number in range(length)]
        batch.release()
    with pytest.raises(ValueError, match="expected arrays"):
        await client.read(data, "test", FILE_ORDER, 0, 5, into=(images, labels))
    await client.close()


@pytest.mark.parametrize("on_the_loop_max", [10, 1 << 20])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("scale", ["none", "unit", "standard"])
async def test_what_is_read_is_bit_for_bit_what_the_scaling_makes_of_the_file(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str, kind: str, on_the_loop_max: int
) -> None:
    """Bytes travel as bytes, and are scaled here, in arrays of the client's or the caller's, on the loop or not."""
    monkeypatch.setattr(batches, "SCALED_ON_THE_LOOP_MAX", on_the_loop_max)
    raw = np.random.default_rng(5).integers(0, 256, (40, 5, 3)).astype(kind)
    labels = np.arange(40) % 7
    np.savez(tmp_path / "made.npz", x_train=raw, y_train=labels, x_test=raw[:2], y_test=labels[:2])
    server = await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(DataConfig(format="npz", source="made", scale=scale), (5, 3, 1), 7)  # type: ignore[arg-type]
    assert data.dtype == kind
    order = whole_pass(server.store.open(data.config, (5, 3, 1), 7), "train", 2)[3:24]
    expected = raw[order].astype(np.float32)[..., None]
    data.scaling.apply(expected)
    assert data.scaling == {"none": Scaling(), "unit": Scaling(1 / 255 if kind == "uint8" else 1.0)}.get(
        scale, scaling_for(scale, server.store.open(data.config, (5, 3, 1), 7).source, np.arange(40))
    )
    into = np.empty_like(expected), np.empty(21, np.int32)
    for batch in (await client.read(data, "train", 2, 3, 24), await client.read(data, "train", 2, 3, 24, into)):
        assert batch.images.dtype == np.float32 and batch.images.tobytes() == expected.tobytes()
        assert batch.labels.tolist() == labels[order].tolist()
        batch.release()
    await client.close()


async def test_scaling_in_a_thread_has_ended_when_a_read_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        go_on.wait(WAIT_S)
        ended.append(True)

    scaling = asyncio.create_task(batches.in_thread_if_long(1 << 30, work))
    await asyncio.to_thread(begun.wait, WAIT_S)
    scaling.cancel()
    await asyncio.sleep(0)
    assert not scaling.done(), "the thread may still write"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await scaling
    assert ended == [True]


async def test_a_range_longer_than_a_frame_is_read_in_parts(farm: Farm, tmp_path: Path) -> None:
    images = np.arange(60, dtype=np.float32)[:, None, None].repeat(512, 1).repeat(512, 2)  # 1 MiB each
    np.savez(tmp_path / "large.npz", x_train=images, y_train=np.arange(60) % 3, x_test=images[:1], y_test=[0])
    await farm.start("data-0")
    client = await farm.client("data-0")
    data = await client.open(DataConfig(format="npz", source="large"), (512, 512, 1), 7)
    batch = await client.read(data, "train", FILE_ORDER, 10, 60)
    assert batch.images[:, 511, 511, 0].tolist() == list(range(10, 60))
    assert batch.labels.tolist() == [number % 3 for number in range(10, 60)]
    batch.release()
    await client.close()


def test_an_answer_of_fewer_than_no_examples_is_refused() -> None:
    released: list[bool] = []
    reply: Any = SimpleNamespace(
        message=DataReadReply(-5, 0, 0), body=memoryview(b""), release=lambda: released.append(True)
    )
    with pytest.raises(ProtocolError, match=r"data-0: expected 0 examples, .*; found \(-5, 0, 0, 0\)"):
        batches.PartOfRange(reply, ExampleForm(2, "uint8"), "data-0")
    assert released == [True]
