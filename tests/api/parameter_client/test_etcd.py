"""Clients for other frameworks where etcd is in the place of controllers: the address, and a job from end to end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

import adamctl as adam
from adamctl.api.parameter_client.job import parse_url
from adamctl.errors import ConfigurationError, UnreachableError
from tests.api.cluster_for_tests import TOKEN, address_of, client, start
from tests.roles.controller.etcd_server import EtcdCluster, etcd_cluster

PREFIX = "/site"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """With two parameter servers under a prefix."""
    servers: list[subprocess.Popen[str]] = []
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        try:
            for number in range(2):
                member = ("ps", "start", "--name", f"ps-{number}", "--apply-threads", "1")
                servers.append(start(*member, "--config-store", cluster.url + PREFIX))
            for server in servers:
                address_of(server)
            yield cluster
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.communicate(timeout=30)


def test_an_address_is_what_config_store_takes_and_a_job() -> None:
    assert parse_url("etcd://a:1,b:2/mine") == (("etcd://a:1,b:2",), "mine")
    assert parse_url("etcd://a:1/site/one/mine?lost_after=9") == (("etcd://a:1/site/one?lost_after=9",), "mine")
    assert parse_url("etcds://a/mine") == (("etcds://a",), "mine")
    for url, words in (
        ("etcd://a:1", "the name of a job"),
        ("etcd://a:1/", "the name of a job"),
        ("etcd://a:1/x~2", "without slashes and ~"),
        ("etcd:///mine", "expected etcd://host:port"),
        ("etcd://a:1/mine?lost=1", "lost_after"),
        ("zookeeper://a:1/mine", "expected adam://.* or etcd://"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            parse_url(url)


def test_secrets_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="ADAMCTL_ETCD_PASSWORD") as caught:
        parse_url("etcd://user:secret@a:1/mine")
    assert "secret" not in str(caught.value)


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match=r"etcd at etcd://127\.0\.0\.1:1 did not answer .*refused"):
        client("etcd://127.0.0.1:1/mine", deadline_s=5.0)  # a busy machine may need seconds to be refused


async def test_a_job_begins_and_ends_for_both_kinds_of_clients(etcd: EtcdCluster) -> None:
    async with adam.AsyncParameterClient(f"{etcd.url}{PREFIX}/shared", token=TOKEN, deadline_s=30) as first:
        await first.register({"w": np.zeros((40, 5))}, replication=2)
        await first.add({"w": np.ones((40, 5))})
        await first.wait()
        with client(f"{etcd.url}{PREFIX}/shared?lost_after=6", deadline_s=30) as second:
            assert (second.register()["w"] == 1).all() and not second.created
            second.add({"w": np.ones((40, 5))})
            second.wait()
        assert ((await first.pull())["w"] == 2).all()
        await first.close(end=True)
