"""What a data server refuses over real connections, and says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError, ProtocolError, RemoteError, UnreachableError
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import DataOpenRequest, StatusRequest
from tests.roles.data.data_servers import TINY, WAIT_S, Farm
from tests.roles.test_rooted import hostile


async def test_a_reader_that_does_not_scale_is_refused(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    await farm.start("data-0")
    connection = await farm.connect("data-0")
    with pytest.raises(RemoteError, match="install one release") as caught:
        await connection.request(DataOpenRequest((4, 4, 1), 7), [msgspec.msgpack.encode(TINY)], deadline_s=WAIT_S)
    assert caught.value.code == ErrorCode.BAD_CONFIGURATION
    await connection.close()


async def test_requests_that_make_no_sense_are_answered_with_errors(farm: Farm) -> None:
    await farm.start("data-0")
    connection = await farm.connect("data-0")
    for message, body in (
        (DataOpenRequest((1,), 1, True), b"\xc1nonsense"),
        (DataOpenRequest((1,), 1, True), b""),
        (StatusRequest(), b""),
    ):
        with pytest.raises((RemoteError, ProtocolError)):
            await connection.request(message, (body,) if body else (), deadline_s=WAIT_S)
    not_text = msgspec.msgpack.encode(TINY).replace(b"tiny", b"tin\xff")
    with pytest.raises(RemoteError, match="expected a DataConfig") as caught:
        await connection.request(DataOpenRequest((1,), 1, True), (not_text,), deadline_s=WAIT_S)
    assert caught.value.code == ErrorCode.BAD_MESSAGE
    await connection.close()


async def test_no_path_of_a_message_leads_a_data_server_elsewhere(farm: Farm, tmp_path: Path) -> None:
    paths = hostile(tmp_path)
    await farm.start("data-0", roots=(str(tmp_path / "root"),))
    connection = await farm.connect("data-0")
    told = set()
    refusals = (ErrorCode.NOT_ALLOWED, ErrorCode.BAD_CONFIGURATION, ErrorCode.DAMAGED_DATA)
    for path in paths:
        for config in (
            DataConfig(format="idx", source=path),
            DataConfig(format="audio", source=str(tmp_path / "root" / "none"), alignment=path),
            DataConfig(format="idx", source="none", search=(path,)),
            DataConfig(format="idx", source=path.replace("/", "")),
        ):
            with pytest.raises(RemoteError) as caught:
                await connection.request(
                    DataOpenRequest((4, 4, 1), 0, True), [msgspec.msgpack.encode(config)], deadline_s=WAIT_S
                )
            assert caught.value.code in refusals, (path, caught.value)
            if config.source in (f"{tmp_path}/outside", f"{tmp_path}/missing"):
                told.add(str(caught.value).replace(config.source, ""))
    assert len(told) == 1, "what is there and what is not are refused alike"
    await connection.close()


async def test_what_a_server_finds_wrong_is_raised_as_what_it_is(farm: Farm, idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    await farm.start("data-0")
    client = await farm.client("data-0")
    with pytest.raises(ConfigurationError, match=r"\[4, 4, 1\].*data-0") as configuration:
        await client.open(TINY, (28, 28, 1), 7)
    with pytest.raises(ConfigurationError, match="adamctl data fetch mnist"):
        await client.open(DataConfig(format="idx", source="mnist"), (28, 28, 1), 7)
    data = await client.open(TINY, (4, 4, 1), 7)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DamagedDataError, match="train-images") as damaged:
        await client.open(TINY, (4, 4, 1), 8)
    assert (configuration.value.exit_code, damaged.value.exit_code) == (2, 5)
    with pytest.raises(RemoteError) as caught:
        await client.read(data, "train", 0, 40, 60)
    assert caught.value.code == ErrorCode.BAD_RANGE
    await client.close()


async def test_one_connection_has_few_data_sets_opened_at_a_time(
    farm: Farm, idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await farm.start("data-0")
    one, other = await farm.connect("data-0"), await farm.connect("data-0")
    opening, begun = threading.Event(), threading.Event()

    def slow(*arguments: Any, **keywords: Any) -> None:
        begun.set()
        opening.wait(WAIT_S)
        raise ConfigurationError("none there")

    monkeypatch.setattr(server.store, "open", slow)
    request = DataOpenRequest((4, 4, 1), 0, True)
    body = msgspec.msgpack.encode(TINY)
    waiting = [asyncio.ensure_future(one.request(request, [body], deadline_s=WAIT_S)) for _ in range(4)]
    await asyncio.to_thread(begun.wait, WAIT_S)
    with pytest.raises(RemoteError, match="4 of your data sets are being opened"):
        await one.request(request, [body], deadline_s=WAIT_S)
    waiting.append(asyncio.ensure_future(other.request(request, [body], deadline_s=WAIT_S)))
    await asyncio.sleep(0)
    opening.set()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, RemoteError) and "none there" in str(result)
    await one.close()
    await other.close()


async def test_a_reader_that_goes_while_its_set_is_opened_does_not_keep_it(
    farm: Farm, idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    idx_folder()
    server = await farm.start("data-0")
    one, other = await farm.connect("data-0"), await farm.client("data-0")
    opening, begun, open_store = threading.Event(), threading.Event(), server.store.open

    def slow(*arguments: Any, **keywords: Any) -> OpenDataSet:
        begun.set()
        opening.wait(WAIT_S)
        return open_store(*arguments, **keywords)

    monkeypatch.setattr(server.store, "open", slow)
    body = [msgspec.msgpack.encode(TINY)]
    asked = asyncio.ensure_future(one.request(DataOpenRequest((4, 4, 1), 7, True), body, deadline_s=100 * WAIT_S))
    await asyncio.to_thread(begun.wait, WAIT_S)
    await one.close()
    with pytest.raises(UnreachableError):
        await asked
    async with asyncio.timeout(WAIT_S):
        while server._waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    opening.set()
    await other.open(TINY, (4, 4, 1), 7)
    assert len(open_store(TINY, (4, 4, 1), 7).readers) == 1
    await other.close()


def test_the_role_is_described_without_importing_it() -> None:
    code = (
        "import sys; from adamctl.roles.data.role import ROLE;"
        "sys.exit(', '.join({'numpy', 'asyncio', 'adamctl.roles.data.server'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
