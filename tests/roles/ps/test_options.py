"""The flags of a parameter server, as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.ps.options import server_options, size_bytes, thread_count


@pytest.mark.parametrize(("given", "found"), [(None, 0.0), ("", 0.0), ("25", 25.0), ("86400", 86400.0)])
def test_how_long_a_server_may_drain(given: str | None, found: float) -> None:
    assert server_options({"drain_on_term": given}).drain_on_term_s == found


@pytest.mark.parametrize("given", ["0", "-1", "soon", "inf", "90000"])
def test_for_how_long_no_server_may_drain(given: str) -> None:
    with pytest.raises(ConfigurationError, match="--drain-on-term: expected"):
        server_options({"drain_on_term": given})


def test_failure_domains_have_names() -> None:
    assert server_options({"failure_domain": "rack-7"}).failure_domain == "rack-7"
    assert server_options({}).failure_domain == ""
    with pytest.raises(ConfigurationError, match="--failure-domain: expected"):
        server_options({"failure_domain": "rack 7"})


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("16", 16), ("0", 0)])
def test_apply_threads(text: str, expected: int) -> None:
    assert thread_count(text) == expected
    assert thread_count("auto") >= 1


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [(1, 1, True), (2, 1, True), (2, 2, True), (3, 1, True), (3, 2, False), (16, 8, False)],
)
def test_the_loop_applies_what_arrives_unless_two_threads_find_cores_beside_its_own(
    cores: int, threads: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adamctl.roles.ps.options.available_cores", lambda: cores)
    assert server_options({"apply_threads": str(threads)}).applies_arriving is expected


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "99999", "²"])
def test_wrong_apply_threads_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--apply-threads"):
        thread_count(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("1GB", 1 << 30), ("1.5 mb", 3 << 19), ("4096", 4096), ("2K", 2048), ("7B", 7)]
)
def test_memory(text: str, expected: int) -> None:
    assert size_bytes("--memory", text) == expected
    assert 0 < size_bytes("--memory", "50%") < size_bytes("--memory", "100%")


@pytest.mark.parametrize(
    "text", ["", "lots", "0", "0.5B", "-1GB", "1XB", "%", "0%", "200%", "100.1%", "9" * 400 + "GB"]
)
def test_wrong_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--memory"):
        size_bytes("--memory", text)


def test_memory_of_clients_that_is_mapped_has_a_bound_that_follows_from_its_own() -> None:
    assert server_options({"memory": "1GB"}).region_bytes_max == 4 << 30


def test_without_a_store_nothing_is_kept() -> None:
    options = server_options({})
    assert options.store is None and options.flush.window_s == 5.0 and options.flush.window_bytes == 4 << 30


def test_a_store_and_its_loss_window() -> None:
    options = server_options({"store": "folder", "loss_window_s": 0.5, "loss_window_bytes": "64MB"})
    assert (options.store, options.flush.window_s) == (Path("folder"), 0.5)
    assert options.flush.window_bytes == 64 << 20


def test_a_loss_window_that_may_grow_and_one_that_may_not() -> None:
    assert server_options({}).flush.window_s_max == 60.0
    assert server_options({"loss_window_s": "auto"}).flush.window_s_max == 60.0
    assert server_options({"loss_window_s": "7.5"}).flush.window_s_max is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"loss_window_s": "soon"}, "--loss-window-s"),
        ({"loss_window_s": "nan"}, "--loss-window-s"),
        ({"loss_window_s": 0.0}, "--loss-window-s"),
        ({"loss_window_s": 1e9}, "--loss-window-s"),
        ({"loss_window_bytes": "some"}, "--loss-window-bytes"),
        ({"loss_window_bytes": "0.1B"}, "--loss-window-bytes: expected from 1 byte to .*; found '0.1B'"),
        ({"memory": "200%"}, "--memory: expected at most 100% of this machine's memory; found '200%'"),
    ],
)
def test_wrong_loss_windows_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        server_options(flags)


def test_addresses_of_each_kind_are_read_and_wrong_ones_named() -> None:
    options = server_options({"listen": "h:1", "admin_listen": "tcp://[::1]:2", "replication_listen": ""})
    assert (options.listen, options.admin_listen, options.replication_listen) == ("tcp://h:1", "tcp://[::1]:2", "")
    with pytest.raises(ConfigurationError, match=r"--admin-listen: expected tcp://host:port"):
        server_options({"admin_listen": "nonsense"})
