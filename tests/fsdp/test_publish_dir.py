"""Nobody's weights stay in shared memory, and nobody else's are removed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from areal_sdk.fsdp import directories as publish_dir
from areal_sdk.fsdp.directories import PublishDir, remove_orphans

KILLED = """
import os, signal, sys
from pathlib import Path
from areal_sdk.fsdp import directories
directories.SHARED_MEMORY = Path(sys.argv[1])
print(directories.PublishDir(size=int(sys.argv[2])).path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


TOO_LARGE = 10**18


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def memory(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "memory"
    path.mkdir()
    monkeypatch.setattr(publish_dir, "SHARED_MEMORY", path)
    return path


@pytest.mark.parametrize("size", [0, TOO_LARGE])
def test_what_a_killed_run_published_is_removed_by_the_next(
    memory: Path, disk: Path, size: int
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(memory), str(size)], capture_output=True, text=True
    )
    orphan = Path(killed.stdout.strip())
    assert orphan.parent == (disk if size else memory)
    assert orphan.is_dir()
    mine = PublishDir(size=0)
    assert [*memory.iterdir(), *disk.iterdir()] == [mine.path]
    mine.remove()


def test_what_a_living_run_published_is_left_alone(memory: Path) -> None:
    one, other = PublishDir(size=0), PublishDir(size=0)
    remove_orphans()
    assert one.path.is_dir()
    one.remove()
    one.remove()
    assert list(memory.iterdir()) == [other.path]
    other.remove()


def test_other_directories_are_left_alone(memory: Path) -> None:
    (memory / "areal-sdk-notes").mkdir()
    remove_orphans()
    assert (memory / "areal-sdk-notes").is_dir()


def test_what_does_not_fit_in_memory_goes_to_disk(memory: Path, disk: Path) -> None:
    large = PublishDir(size=TOO_LARGE)
    assert large.path.parent == disk
    large.remove()
    assert not large.path.exists()
