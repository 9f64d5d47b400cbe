"""A message names no file: what servers write and the coordinator renames follows from nodes and roots alone."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from adamctl.errors import DamagedDataError, RemoteError
from adamctl.model.rule import RuleConfig
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.ps.checkpoint_files import file_name, partial_name
from adamctl.roles.ps.client.checkpoint import files_of
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointRequest
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import add_job, checkpoint, start_servers
from tests.roles.test_rooted import hostile

REPLY = CheckpointFile("../../.bashrc", "/home/somebody/of-the-owner", 5, "0" * 32, (0, 1))


def test_names_follow_from_the_node_whatever_a_reply_says() -> None:
    (file,) = files_of("parameter server ps-0", "ps-0", (REPLY,), 2)
    assert (file.name, file.temporary_name) == ("shards-ps-0.adam", ".shards-ps-0.adam.partial")
    assert files_of("parameter server ps-0", "ps-0", (), 2) == ()


@pytest.mark.parametrize(
    "files",
    [
        (REPLY, REPLY),
        (msgspec.structs.replace(REPLY, shards=(2,)),),
        (msgspec.structs.replace(REPLY, shards=(-1,)),),
        (msgspec.structs.replace(REPLY, size_bytes=-1),),
        (msgspec.structs.replace(REPLY, checksum="\x1b[2J"),),
    ],
)
def test_what_no_server_can_have_written_is_refused(files: tuple[CheckpointFile, ...]) -> None:
    with pytest.raises(RemoteError, match="ps-0") as caught:
        files_of("parameter server ps-0", "ps-0", files, 2)
    assert caught.value.code == ErrorCode.BAD_MESSAGE and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("../of-the-owner", "written"),
        (file_name("ps-0"), "../of-the-owner"),
        (file_name("ps-0"), "written"),
        ("/etc/passwd", partial_name("/etc/passwd")),
    ],
)
def test_nothing_is_renamed_but_a_servers_file(tmp_path: Path, name: str, temporary: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in (tmp_path / "of-the-owner", folder / "written"):
        path.write_text("12345")
    described = msgspec.structs.replace(REPLY, name=name, temporary_name=temporary)
    with pytest.raises(DamagedDataError):
        manifest.finish(folder, [described], lambda files: pytest.fail("it was finished"))
    assert (tmp_path / "of-the-owner").read_text() == "12345" and os.listdir(folder) == ["written"]


def test_a_link_in_the_place_of_a_file_is_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("12345")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    name = file_name("ps-0")
    (folder / partial_name(name)).symlink_to(tmp_path / "secret")
    described = msgspec.structs.replace(REPLY, name=name, temporary_name=partial_name(name))
    with pytest.raises(DamagedDataError, match="found None"):
        manifest.finish(folder, [described], lambda files: pytest.fail("it was finished"))


async def test_servers_write_in_their_roots_alone_over_no_link_and_tell_nothing(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir(mode=0o755)
    async with memory_cluster(51) as cluster:
        await start_servers(cluster, "ps-0", checkpoint_root=(str(root),))
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        told = set()
        for folder in (outside, outside / "missing", root / ".." / "outside", Path("/root/.ssh"), Path("relative")):
            with pytest.raises(RemoteError) as caught:
                await checkpoint(cluster, "a", folder)
            assert caught.value.code == ErrorCode.NOT_ALLOWED
            told.add(str(caught.value).replace(str(folder), ""))
        assert len(told) == 1 and not list(outside.iterdir())
        victim = outside / "victim"
        victim.write_text("of the owner")
        (root / "new").mkdir()
        (root / "new" / partial_name(file_name("ps-0"))).symlink_to(victim)
        (files,) = await checkpoint(cluster, "a", root / "new")
        written = root / "new" / files.temporary_name
        assert victim.read_text() == "of the owner" and not written.is_symlink()
        assert written.stat().st_mode & 0o777 == 0o600 and written.stat().st_size == files.size_bytes
        (root / "link").symlink_to(outside)
        with pytest.raises(RemoteError) as caught:
            await checkpoint(cluster, "a", root / "link")
        assert str(caught.value).endswith("see its log")
        assert [path.name for path in outside.iterdir()] == ["victim"]


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_job_is_begun_from_nothing_outside_the_roots(tmp_path: Path, copies: int) -> None:
    async with memory_cluster(52) as cluster:
        names = [f"ps-{number}" for number in range(copies)]
        await start_servers(cluster, *names, checkpoint_root=(str(tmp_path / "root"),))
        await add_job(cluster, "a", names, RuleConfig("add"), restore=str(tmp_path / "elsewhere"), copies=copies)
        with pytest.raises(RemoteError, match="is in none of the folders given by --checkpoint-root"):
            await checkpoint(cluster, "a", tmp_path / "root")


async def test_a_checkpoint_is_ordered_by_the_jobs_own_coordinator(tmp_path: Path) -> None:
    async with memory_cluster(53) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), coordinator="c-own")
        own, other = await cluster.context("coordinator", "c-own"), await cluster.context("coordinator", "c-other")
        request = CheckpointRequest("a", str(tmp_path))
        connection = await other.connect("ps-0", 10)
        with pytest.raises(RemoteError, match="is coordinated by c-own, not by c-other") as caught:
            while True:
                try:
                    await connection.request(request, deadline_s=10)
                except RemoteError as error:
                    if error.code not in (ErrorCode.NOT_READY, ErrorCode.UNKNOWN_JOB):
                        raise
        assert caught.value.code == ErrorCode.NOT_ALLOWED
        await connection.close()
        connection = await own.connect("ps-0", 10)
        await connection.request(request, deadline_s=10)
        await connection.close()


async def test_servers_without_the_folder_are_fetched_from_and_the_files_are_the_same(tmp_path: Path) -> None:
    """All servers have a folder of that name that is another, then one has the coordinator's; the others have none."""
    root, folder, nonce = tmp_path / "root", tmp_path / "root" / "000001", "n" * 32
    folder.mkdir(parents=True)
    async with memory_cluster(52) as cluster:
        await start_servers(cluster, "ps-0", checkpoint_root=(str(root),))
        await start_servers(cluster, "ps-1", "ps-2", checkpoint_root=(str(tmp_path / "nowhere"),))
        await add_job(cluster, "a", ["ps-0", "ps-1", "ps-2"], RuleConfig("momentum"), shapes=((700, 500),) * 4)
        contents = []
        for found in ("m" * 32, nonce):
            (folder / ".nonce").write_text(found)
            files = await checkpoint(cluster, "a", folder, nonce=nonce)
            assert [file.name for file in files] == [file_name(f"ps-{number}") for number in range(3)]
            contents.append({file.name: (folder / file.temporary_name).read_bytes() for file in files})
        assert contents[0] == contents[1] and sum(map(len, contents[0].values())) > 4 * 700 * 500 * 8
        assert not (tmp_path / "nowhere").exists()


async def test_no_path_of_a_message_leads_a_server_elsewhere(tmp_path: Path) -> None:
    """PS_CHECKPOINT, of the job's own coordinator."""
    paths = hostile(tmp_path)
    async with memory_cluster(54) as cluster:
        await start_servers(cluster, "ps-0", checkpoint_root=(str(tmp_path / "root"),))
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        await checkpoint(cluster, "a", tmp_path / "root" / "good")
        for path in paths:
            with pytest.raises(RemoteError) as caught:
                await checkpoint(cluster, "a", path)  # type: ignore[arg-type]
            text = str(caught.value)
            assert caught.value.code in (ErrorCode.NOT_ALLOWED, ErrorCode.INTERNAL) and text.isprintable(), path
            assert text.endswith(("given by --checkpoint-root; add it there", "see its log")), text
    assert not list((tmp_path / "outside").iterdir())
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["good", "link"]


@pytest.mark.parametrize("place", [".manifest.json.partial", "manifest.json"])
def test_a_link_planted_for_the_manifest_is_not_written_through(tmp_path: Path, place: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of the owner")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / place).symlink_to(victim)
    descriptor = os.open(folder, os.O_RDONLY)
    manifest._write_manifest(descriptor, b"{}")
    os.close(descriptor)
    assert victim.read_text() == "of the owner" and os.listdir(folder) == ["manifest.json"]
    assert (folder / "manifest.json").read_bytes() == b"{}" and not (folder / "manifest.json").is_symlink()
    assert (folder / "manifest.json").stat().st_mode & 0o777 == 0o600


async def test_a_job_is_not_restored_through_a_planted_link(tmp_path: Path) -> None:
    async with memory_cluster(55) as cluster:
        await start_servers(cluster, "ps-0", checkpoint_root=(str(tmp_path),))
        (tmp_path / "begun").mkdir()
        (tmp_path / "begun" / "manifest.json").symlink_to("/etc/passwd")
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), restore=str(tmp_path / "begun"))
        with pytest.raises(RemoteError, match="must hold no links; found 'manifest"):
            await checkpoint(cluster, "a", tmp_path / "x")
