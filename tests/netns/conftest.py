"""One cluster for all tests of this folder: raylets take half a minute to start."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.cluster import Cluster, cluster


@pytest.fixture(scope="package")
def started() -> Iterator[Cluster]:
    """Room for the engine, two ranks and two rollout nodes, and for one process that is lost."""
    directory = Path(tempfile.mkdtemp(prefix="areal-"))
    try:
        with cluster(6, directory) as made:
            yield made
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def machines(started: Cluster) -> Cluster:
    """The cluster, whole: links and nodes that an earlier test took down are back."""
    started.mend()
    return started
