"""The conformance suite over everything that is a `ConfigurationStore`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from tests.cluster import memory_cluster
from tests.roles.controller.conformance import Conformance
from tests.roles.controller.test_server import controller_on


class TestInProcess(Conformance):
    @pytest.fixture
    def store(self) -> ConfigurationStore:
        return MemoryConfigurationStore()


class TestOverMemory(Conformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ConfigurationStore]:
        async with memory_cluster(1) as cluster:
            yield cluster.client


class TestOverADeceitfulNetwork(Conformance):
    """Frames are lost, doubled and overtaken; the client's retries and the sessions make up for it."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[ConfigurationStore]:
        network = MemoryNetwork(Random(5), LinkFaults(loss=0.1, duplication=0.3, reordering=0.2))
        async with memory_cluster(5, network=network) as cluster:
            cluster.client.attempt_s = 0.1
            cluster.client.watch_s = 0.1
            yield cluster.client


class TestOverTcp(Conformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ConfigurationStore]:
        async with controller_on(tmp_path, ["tcp://127.0.0.1:0"]) as addresses:
            client = ControllerClient(
                StreamTransport(), addresses, lambda: make_hello("front", "test"), log=logging.getLogger("test")
            )
            yield client
            await client.close()
