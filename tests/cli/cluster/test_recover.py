"""`recover`: what it shows of buckets that wait for ever, and the command where there is nothing to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from adamctl.cli.cluster.recover import COLUMNS, described, lost_text
from adamctl.cli.cluster.stuck import findings, servers_of
from adamctl.config.records import BucketRecord, NodeRecord, encode, node_key
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.ps.replication.core.recovery import Kept, State
from adamctl.wire.messages import ConfigChanges, ConfigEntry
from tests.cli.cluster.test_copies import LAYOUT, job_entries
from tests.cli.cluster.test_state import TOKEN, adamctl, controller_and

COUNT = len(LAYOUT.buckets)
RECORD = BucketRecord(4, "a", ("a", "b", "c"))
OLD = Kept(4, True, 2, (1, 40), (3, 44), 90)
NEW = Kept(4, True, 2, (3, 45), (3, 45), 90)
NOTHING = Kept(4, True)


def nodes(*names: str) -> Any:
    """Servers that were started after the records were written, each as incarnation 5."""
    return servers_of(
        ConfigEntry(node_key(name), encode(NodeRecord(name, "ps", 5, (), "host", 1)), 9) for name in names
    )


def status(kept: Kept, incarnation: int = 5) -> dict[str, Any]:
    buckets = {bucket: kept.values() for bucket in range(COUNT)}
    return {"incarnation": incarnation, "replication": {"jobs": {"one": {"kept": buckets}}}}


def found(statuses: Mapping[str, Mapping[str, Any]], *names: str) -> Any:
    return findings("one", job_entries("one", RECORD), nodes(*(names or statuses)), statuses)


def test_what_is_stuck_is_shown_with_what_would_be_done() -> None:
    text = described(found({"b": status(OLD), "c": status(NEW)}))
    header, first, *_ = text.splitlines()
    assert [name.strip() for name in header.split("  ") if name.strip()] == list(COLUMNS)
    assert first.split("  ")[-1].strip() == "b"
    assert "a  " in first and "epoch 3, version 45 (90 updates of 2 shards)" in first
    assert "Updates acknowledged after those states are lost" in text
    assert "If a can still be started with its store, start it instead" in text


def test_states_of_more_than_one_version() -> None:
    text = described(found({"b": status(OLD), "c": status(NOTHING)}))
    assert "epochs 1 to 3, versions up to 44 (90 updates of 2 shards)" in text
    text = described(found({"b": status(Kept(4, True, 2, (3, 40), (3, 44), 84)), "c": status(NOTHING)}))
    assert "epoch 3, versions 40 to 44" in text


def test_what_nobody_has_is_said() -> None:
    nobody = found({"b": status(NOTHING)})
    assert {one.state for one in nobody} == {State.NOBODY}
    assert described(nobody).count("no server has it") == COUNT
    text = lost_text("one", nobody)
    assert f"buckets 0-{COUNT - 1} of job 'one': no live server has any of it" in text
    assert "b has no data of it; a, c are not there" in text
    assert "start a, c again with their stores, or resume the run from its last checkpoint" in text
    all_back = found({name: status(NOTHING) for name in "abc"})
    assert "; resume the run from its last checkpoint; nothing was changed" in lost_text("one", all_back)


def test_what_a_server_that_is_no_member_any_more_has_is_shown_and_counts_where_it_is_named() -> None:
    nobody = found({"d": status(OLD)})
    assert {one.state for one in nobody} == {State.NOBODY}
    assert "d, no longer in sync, has bucket 0 on disk up to epochs 1 to 3" in described(nobody)
    assert "continue with the older copy of d: --from d, or resume the run" in lost_text("one", nobody)
    chosen = findings("one", job_entries("one", RECORD), nodes("d"), {"d": status(OLD)}, "d")
    assert {(one.state, one.primary, one.given_up) for one in chosen} == {(State.STUCK, "d", ("a", "b", "c"))}
    assert all(node_key("d") in (one.conditions or {}) for one in chosen)
    record = chosen[0].recovered(1.0)
    assert (record.primary, record.in_sync) == ("d", ("d",))
    stuck = found({"b": status(OLD), "d": status(NEW)})
    assert {one.primary for one in stuck} == {"b"}, "nobody has named d"
    members = {name: status(OLD) for name in "abc"} | {"d": status(NEW)}
    back = findings("one", job_entries("one", RECORD), nodes(*members), members, "d")
    assert {one.state for one in back} == {State.RETURNING}


def test_what_needs_no_help_is_said() -> None:
    assert described(found({name: status(NEW) for name in "abc"})) == (
        f"buckets 0-{COUNT - 1}: all its servers are back and will resume it by themselves"
    )
    assert described([]).startswith("nothing is stuck")


@pytest.mark.parametrize(
    "answer", [{}, {"error": "it does not answer"}, status(NEW, incarnation=4), {**status(NEW), "incarnation": None}]
)
def test_one_that_does_not_answer_for_itself_is_not_given_up(answer: dict[str, Any]) -> None:
    assert {one.state for one in found({"b": status(NEW), "c": answer})} == {State.UNCERTAIN}


def test_a_status_of_another_version_says_nothing() -> None:
    strange = {"incarnation": 5, "replication": {"jobs": {"one": {"kept": {0: [1]}}}}}
    assert found({"b": status(NEW), "c": strange})[0].state is State.UNCERTAIN


def test_a_job_that_does_not_run() -> None:
    with pytest.raises(ConfigurationError, match=r"found 'two' \(running: one\)"):
        findings("two", job_entries("one", RECORD), nodes("a"), {})
    with pytest.raises(ConfigurationError, match="running: none"):
        findings("one", job_entries("one", RECORD, state="ended"), nodes("a"), {})
    damaged = [*job_entries("one", RECORD), ConfigEntry("/jobs/one", b"\xc1", 2)]
    with pytest.raises(DamagedDataError, match="cannot be read"):
        findings("one", damaged, nodes("a"), {})


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with controller_and("ps", tmp_path_factory.mktemp("controller")) as address:
        yield address


def test_the_command_where_there_is_no_job(controller: str) -> None:
    result = adamctl("recover", "one", "--controller", controller)
    assert result.returncode == 2 and "JOB: expected a running job; found 'one' (running: none)" in result.stderr


async def make_job(address: str) -> None:
    """A job whose servers are gone, all of them."""
    client = ControllerClient(StreamTransport(), [address], lambda: make_hello("client", "maker", 0, TOKEN))
    puts = {entry.key: entry.value for entry in job_entries("gone", RECORD)}
    assert not (await client.compare_and_set(ConfigChanges(dict.fromkeys(puts, 0), puts))).conflicts
    await client.close()


def test_the_command_where_nobody_has_anything(controller: str) -> None:
    asyncio.run(make_job(controller))
    common = ("recover", "gone", "--controller", controller)
    result = adamctl(*common, "--yes")
    assert result.returncode == 1
    assert result.stdout.count("no server has it") == COUNT
    assert "no live server has any of it, in memory or in a store (a, b, c are not there)" in result.stderr
    result = adamctl(*common, "--bucket", "1", "--json")
    (bucket,) = json.loads(result.stdout)["buckets"]
    assert result.returncode == 1
    assert (bucket["bucket"], bucket["state"], bucket["missing"], bucket["recovered"]) == (
        1, "nobody", ["a", "b", "c"], False,
    )  # fmt: skip
    result = adamctl(*common, "--bucket", str(COUNT))
    assert result.returncode == 2 and f"has buckets 0 to {COUNT - 1}; found {COUNT}" in result.stderr
