"""A whole run, scraped while it trains: every role answers, and the counters are those of the run."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

import pytest

from adamctl.bench.metrics import scrape
from tests.e2e.conftest import EXAMPLES, Runner
from tests.ports import free_ports

pytest.importorskip("prometheus_client")
STARTED_S = 120.0


@pytest.mark.slow
def test_a_run_shows_its_cluster_while_it_lasts(adamctl: Runner) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    run = adamctl.start(
        "train", EXAMPLES / "digits.toml", "--passes", "60", "--json", "--metrics-port", str(port),
        ADAMCTL_TLS="of-another-cluster",  # a run of its own uses no certificate, wherever it is
    )  # fmt: skip
    most, up = 0.0, set[str]()
    until_s = time.monotonic() + STARTED_S
    while run.process.poll() is None and time.monotonic() < until_s:
        with suppress(OSError, TimeoutError):
            for line in asyncio.run(scrape(url)).splitlines():
                name, _, value = line.rpartition(" ")
                if name.startswith("adamctl_examples_total{"):
                    most = max(most, float(value))
                if name.startswith("adamctl_node_up{") and value == "1.0":
                    up.add(name.partition('role="')[2].partition('"')[0])
        time.sleep(0.2)
    code, out, err = run.wait()
    assert code == 0, err
    assert up == {"controller", "coordinator", "data", "ps", "worker"}
    assert 0 < most <= json.loads(out)["examples"]
    assert f"metrics at {url}" in err
    with pytest.raises(OSError):
        asyncio.run(scrape(url))
