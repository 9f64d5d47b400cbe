"""etcd in the place of the controllers: the same conformance suite, and what only etcd has."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from adamctl.roles.controller.client import ConfigurationStore
from adamctl.roles.controller.etcd import EtcdClient
from tests.roles.controller.conformance import Conformance
from tests.roles.controller.etcd_server import EtcdCluster, etcd_cluster

_roots = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    """A client with keys of its own."""
    client = EtcdClient(f"{etcd.url}/test-{next(_roots)}")
    yield client
    await client.close()


class TestOverEtcd(Conformance):
    @pytest.fixture
    def store(self, client: EtcdClient) -> ConfigurationStore:
        return client
