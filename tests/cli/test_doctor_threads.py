"""Doctor says where threads would run."""

from __future__ import annotations

import pytest

from adamctl.cli.doctor_checks import all_findings
from adamctl.kernels import threads
from adamctl.kernels.threads import Node


def test_nodes_their_cores_and_what_would_be_bound_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "read_nodes", lambda: (Node(0, (0, 1)), Node(1, (2, 3))))
    monkeypatch.setattr(threads, "can_bind", lambda: True)
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    found = {finding.name: finding.found for finding in all_findings()}
    assert found["node 0"] == "2 core(s): 0-1"
    assert found["node 1"] == "2 core(s): 2-3"
    assert found["threads"] == "4 would be bound to cores: 0-1 to 0-1, 2-3 to 2-3"
    monkeypatch.setenv(threads.VARIABLE, "off")
    found = {finding.name: finding.found for finding in all_findings()}
    assert found["threads"] == "4 would be left to the system: binding is off (ADAMCTL_BINDING=off)"
