"""A whole cluster over TLS in virtual time: real roles, real certificates, and a clock that goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import numpy as np
import pytest

from adamctl.model.rule import RuleConfig
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps import server
from tests.cluster import memory_cluster
from tests.net.tls.certificates import Authority, lasting
from tests.roles.ps.ps_cluster import TWO, add_job, constant, make_client, push_of, views


@pytest.mark.slow
def test_pushes_go_on_while_every_certificate_expires_and_is_renewed(tmp_path: Path) -> None:
    """Certificates of 80 seconds, renewed every 40, for four minutes: each push is applied once, none waits long."""

    async def main() -> None:
        authority = Authority(tmp_path)
        loop = asyncio.get_running_loop()
        network = MemoryNetwork(Random(8), tls=lasting(authority, 1080.0), keep_trace=True)
        async with memory_cluster(8, network=network) as cluster:
            for name in TWO:
                await cluster.start("ps", name, server.run, {"apply_threads": "0"})
            layout = await add_job(cluster, "a", TWO, RuleConfig("add"))
            client = await make_client(cluster, "a", "w0", attempt_s=0.5)
            before, after = constant(layout, 0.0), constant(layout, 0.0)
            await client.pull(before, exact=True)
            began_s, pushes = loop.time(), 0
            renewed_s = began_s
            while loop.time() < began_s + 240:
                if loop.time() > renewed_s + 40:
                    renewed_s = loop.time()
                    for folder in list(authority.folder.iterdir()):
                        role, _, node = folder.name.partition("-")
                        authority.write(role, node, begin_s=-1000.0, lifetime_s=1080.0 + renewed_s)
                asked_s = loop.time()
                push = client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
                assert not (await push.wait(60)).refused
                assert loop.time() - asked_s < 1.0
                pushes += 1
                await asyncio.sleep(3.0)
            await client.pull(after, exact=True)
            for found, start in zip(views(layout, after), views(layout, before), strict=True):
                np.testing.assert_allclose(found - start, pushes, atol=0.01)
            await client.close()
            assert sum(what == "end" for *_, what, _ in network.trace) > 5, "no connection has ended"

    run_virtual(main())
