"""What a server maps of a client's memory, and what it refuses."""

from __future__ import annotations

import gc
import mmap
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import RemoteError
from adamctl.net import regions
from adamctl.net.regions import RegionQuota, RegionTable, peer_process
from adamctl.net.shared_memory import SharedMemory
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import MemoryRegisterRequest
from tests.net.world import World, everywhere

PAGE = mmap.PAGESIZE
linux_only = pytest.mark.skipif(not regions.SUPPORTED, reason="memory is shared on Linux only")


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    """A Unix socket whose other end is this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        yield ours


def shown(memory: SharedMemory, array: np.ndarray) -> MemoryRegisterRequest:
    place = memory.find(array)
    assert place is not None
    region = place.region
    return MemoryRegisterRequest(region.number, region.device, region.descriptor, region.size_bytes)


def of_descriptor(descriptor: int, size_bytes: int = PAGE) -> MemoryRegisterRequest:
    status = os.fstat(descriptor)
    return MemoryRegisterRequest(status.st_ino, status.st_dev, descriptor, size_bytes)


def refusal(table: RegionTable, sock: socket.socket, request: MemoryRegisterRequest) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        table.register(sock, request)
    assert table.size_bytes == len(table) == 0
    return caught.value


@linux_only
def test_a_registered_region_is_the_clients_memory(sock: socket.socket) -> None:
    memory, table = SharedMemory(2 * PAGE), RegionTable(RegionQuota(1 << 30), 4)
    array = memory.array(4)
    request = shown(memory, array)
    table.register(sock, request)
    table.register(sock, request)  # once more is the same
    view = table.find(request.number)
    assert view is not None and len(view) == table.size_bytes == 2 * PAGE and len(table) == 1
    view[:4] = np.float32(2).tobytes()
    assert array[0] == 2
    assert table.find(request.number + 1) is None
    memory.close()
    table.clear()
    assert table.find(request.number) is None and table.size_bytes == 0
    assert view[:4] == np.float32(2).tobytes()  # mapped as long as somebody holds it


@linux_only
def test_one_quota_bounds_what_all_connections_map(sock: socket.socket) -> None:
    quota = RegionQuota(3 * PAGE)
    first, second = RegionTable(quota, 4), RegionTable(quota, 4)
    two, one, big = SharedMemory(2 * PAGE), SharedMemory(PAGE), SharedMemory(4 * PAGE)
    assert refusal(first, sock, shown(big, big.array(1))).code == ErrorCode.OVER_QUOTA
    request = shown(two, two.array(1))
    first.register(sock, request)
    assert refusal(second, sock, request).code == ErrorCode.OVER_QUOTA
    second.register(sock, shown(one, one.array(1)))
    assert quota.mapped_bytes == 3 * PAGE
    view = first.find(request.number)
    first.clear()
    assert quota.mapped_bytes == 3 * PAGE and view is not None  # still being read
    with pytest.raises(RemoteError):
        second.register(sock, request)
    del view
    gc.collect()
    assert quota.mapped_bytes == PAGE
    second.register(sock, request)
    second.clear()
    for memory in (two, one, big):
        memory.close()


@linux_only
def test_what_cannot_be_mapped_takes_nothing_of_the_quota(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    quota, memory = RegionQuota(PAGE), SharedMemory(PAGE)
    request = shown(memory, memory.array(1))
    with monkeypatch.context() as patch:
        patch.setattr(regions.mmap, "mmap", fail)
        assert refusal(RegionTable(quota, 4), sock, request).code == ErrorCode.NOT_SHAREABLE
    assert quota.mapped_bytes == 0
    memory.close()


@linux_only
def test_a_connection_registers_so_many_regions(sock: socket.socket) -> None:
    table, memories = RegionTable(RegionQuota(1 << 30), 2), [SharedMemory(PAGE) for _ in range(3)]
    requests = [shown(memory, memory.array(1)) for memory in memories]
    for request in requests[:2]:
        table.register(sock, request)
    with pytest.raises(RemoteError, match="2 regions") as caught:
        table.register(sock, requests[2])
    assert caught.value.code == ErrorCode.OVER_QUOTA
    for memory in memories:
        memory.close()


def memfd(flags: int = 0, size_bytes: int = PAGE) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def pipe_end(_: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def plain_file(folder: Path) -> int:
    path = folder / "file"
    path.write_bytes(bytes(PAGE))
    return os.open(path, os.O_RDWR)


@linux_only
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: memfd(), "sealed"),
        (pipe_end, "not a file of memory"),
        (plain_file, "memory|sealed"),
        (lambda _: os.open("/dev/null", os.O_RDWR), "not a file of memory"),
    ],
    ids=["unsealed", "pipe", "file", "device"],
)
def test_what_could_shrink_or_is_no_memory_is_refused(
    sock: socket.socket, tmp_path: Path, make: Callable[[Path], int], why: str
) -> None:
    descriptor = make(tmp_path)
    error = refusal(RegionTable(RegionQuota(1 << 30), 4), sock, of_descriptor(descriptor))
    assert error.code == ErrorCode.NOT_SHAREABLE
    assert re.search(why, str(error))
    os.close(descriptor)


@linux_only
@pytest.mark.parametrize("change", ["number", "device", "descriptor", "size_bytes", "part", "none"])
def test_a_request_that_does_not_fit_what_is_open_there_is_refused(sock: socket.socket, change: str) -> None:
    memory = SharedMemory(PAGE)
    request = shown(memory, memory.array(1))
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    changed = {"descriptor": 1 << 20, "size_bytes": 2 * PAGE, "part": PAGE - 1, "none": 0}
    values["size_bytes" if change in ("part", "none") else change] = changed.get(change, 12345)
    assert (
        refusal(RegionTable(RegionQuota(1 << 30), 4), sock, MemoryRegisterRequest(**values)).code
        == ErrorCode.NOT_SHAREABLE
    )
    memory.close()


@linux_only
def test_nothing_stays_open_after_a_refusal(sock: socket.socket) -> None:
    descriptor = memfd()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        refusal(RegionTable(RegionQuota(1 << 30), 4), sock, of_descriptor(descriptor))
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(descriptor)


@linux_only
def test_the_kernel_says_whose_process_it_is(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_process(sock) == os.getpid()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(RemoteError, match="user"):
        peer_process(sock)


def test_other_sockets_share_nothing() -> None:
    with socket.socket(socket.AF_INET) as sock, pytest.raises(RemoteError) as caught:
        peer_process(sock)
    assert caught.value.code == ErrorCode.NOT_SHAREABLE
    with pytest.raises(RemoteError):
        peer_process(None)


@linux_only
@everywhere()
async def test_memory_is_shown_over_unix_sockets_alone(world: World) -> None:
    seen: list[object] = []

    def handle(request) -> None:  # type: ignore[no-untyped-def]
        seen.append(request)

    memory = SharedMemory(PAGE)
    place = memory.find(memory.array(4))
    assert place is not None
    server, connection = await world.pair(handle)
    assert connection.kind == world.kind
    accepted = await connection.share(place.region, deadline_s=10)
    assert accepted is (world.kind == "unix")
    assert await connection.share(place.region, deadline_s=10) is accepted
    assert connection.kind == ("shared" if accepted else world.kind)
    assert server.connections_by_kind() == {connection.kind: 1}
    assert server.region_bytes == (PAGE if accepted else 0)
    assert not seen  # no business of the handler's
    await connection.close()
    memory.close()


@linux_only
@everywhere("unix")
async def test_a_server_that_cannot_map_is_not_asked_twice(world: World) -> None:
    server, connection = await world.pair()
    first, second = SharedMemory(PAGE), SharedMemory(PAGE)
    place, other = first.find(first.array(1)), second.find(second.array(1))
    assert place is not None and other is not None
    first.close()  # its descriptor is not open any more
    assert not await connection.share(place.region, deadline_s=10)
    assert not await connection.share(other.region, deadline_s=10)
    assert connection.kind == "unix" and server.region_bytes == 0
    second.close()
