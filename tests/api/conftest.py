"""One small cluster for all tests of clients of other frameworks, and a job of its own for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.api.cluster_for_tests import running_cluster

COUNT = itertools.count()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def url(cluster: str) -> str:
    """A job of its own for each test."""
    return f"adam://{cluster}/job-{next(COUNT)}"
