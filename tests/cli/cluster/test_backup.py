"""The configuration as a file and onto new controllers, and the folder of one that is stopped: by command."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from adamctl.config.records import LEAP, BucketRecord, bucket_key, decode
from adamctl.wire.messages import ConfigChanges
from tests.cli.cluster.test_state import adamctl
from tests.roles.controller.core.service.test_check import GOOD
from tests.roles.controller.members import client_of, members_on

BUCKET = bucket_key("j", 0)


async def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(adamctl, "controller", *map(str, arguments), token="")


async def fails(code: int, text: str, *arguments: object) -> None:
    result = await run(*arguments)
    assert result.returncode == code and text in result.stderr, (result.returncode, result.stderr)


async def test_a_backup_of_three_goes_onto_one_and_a_poisoned_key_is_removed(tmp_path: Path) -> None:
    file, lone = tmp_path / "backup", tmp_path / "new" / "a"
    async with members_on(tmp_path / "old") as members:
        addresses = [member.peers[name] for name, member in members.items()]
        client = client_of(addresses)
        await client.compare_and_set(ConfigChanges({}, GOOD))
        written = await run("backup", file, *(f"--controller={address}" for address in addresses))
        assert written.returncode == 0, written.stderr
        assert written.stdout.startswith(f"{file}: 5 keys of cluster ")
        await fails(2, "exists already", "backup", file, "--controller", addresses[0])
        await fails(2, "expected new controllers, without any job", "restore", file, "--controller", addresses[0])
        (identity,) = {member.core.cluster for member in members.values()}
        await client.close()
    async with members_on(tmp_path / "new", 1) as members:
        address = members["a"].peers["a"]
        restored = await run("restore", file, "--controller", address)
        assert restored.returncode == 0 and f"restored 5 keys of cluster {identity}" in restored.stdout
        assert members["a"].core.cluster == members["a"].context.cluster == identity
        client = client_of([address])
        _, (entry,) = await client.read(BUCKET)
        assert decode(entry.value, BucketRecord).epoch % LEAP == 0, "the clock's, raised"
        poison = msgspec.structs.replace(entry, key="/else\x1b")  # what no request could have put there
        members["a"].core.state._entries[poison.key] = poison
        core = members["a"].core
        members["a"]._store.write_snapshot(*core.snapshot())
        await fails(2, "another controller", "check", lone)
        await client.close()
    found = await run("check", lone)
    assert found.returncode == 4 and "no key that this version knows" in found.stdout and "\x1b" not in found.stdout
    shown = await run("check", lone, "--remove", "/else\x1b")
    assert shown.returncode == 4 and "nothing was changed" in shown.stdout
    removed = await run("check", lone, "--remove", "/else\x1b", "--yes", "--json")
    assert removed.returncode == 0 and json.loads(removed.stdout)["removed"] == ["/else\x1b"]
    assert (await run("check", lone)).returncode == 0
    of_three = tmp_path / "old" / "b"
    await fails(2, "is of one of several controllers (a, b, c)", "check", of_three, "--remove", BUCKET, "--yes")
    left = await run("check", of_three, "--remove", BUCKET, "--backup", tmp_path / "left", "--json")
    assert left.returncode == 0, left.stderr
    async with members_on(tmp_path / "third", 1) as members:
        address = members["a"].peers["a"]
        assert (await run("restore", tmp_path / "left", "--controller", address)).returncode == 0
        keys = [entry.key for entry in members["a"].core.state.read("")]
        assert keys == sorted(key for key in GOOD if key != BUCKET and not key.startswith("/drains/"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("backup", "b", "--config-store", "etcd://h:1"), "backed up and restored with etcdctl and etcdutl"),
        (("restore", "none", "--config-store", "etcd://h:1"), "backed up and restored with etcdctl and etcdutl"),
        (("restore", "none", "--controller", "127.0.0.1:1"), "none cannot be read"),
        (("check", "."), "expected the folder of a controller"),
    ],
)
def test_what_is_refused_at_once(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = adamctl("controller", *arguments)
    assert result.returncode == 2 and text in result.stderr
