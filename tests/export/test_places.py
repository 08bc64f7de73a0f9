"""A place where nothing can be written is named with the cure; nothing is left there."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.main import cli
from areal_sdk.errors import ConfigError
from areal_sdk.loop.export import choose, write_export
from areal_sdk.telemetry import RunDir

WAITS = """
import sys, time
from pathlib import Path
from areal_sdk.loop.export import Figures, choose, write_export
from areal_sdk.telemetry import RunDir

def wait(directory):
    print(directory, flush=True)
    time.sleep(120)
    return Figures()

try:
    write_export(choose(RunDir(Path(sys.argv[1]))), Path(sys.argv[2]), measure=wait)
except KeyboardInterrupt:
    sys.exit(3)
"""


def test_a_place_that_refuses_files_is_an_error_with_the_cure(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "model", Path("/proc/model")):
        result = CliRunner().invoke(cli, ["export", str(run.path), "--to", str(place)])
        assert isinstance(result.exception, ConfigError), result.exception
        told = str(result.exception)
        assert f"{place} cannot be written: " in told
        assert "choose a place where you may write (--to DIRECTORY)" in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_no_more_is_an_error_with_the_cure(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copyfile", refuse)
    cure = "free some, or choose another disk" if number == errno.ENOSPC else "where you may write"
    with pytest.raises(ConfigError, match=cure) as error:
        write_export(choose(run), tmp_path / "model")
    assert os.strerror(number) in str(error.value)
    assert "[(" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_an_export_that_was_ended(run: RunDir, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS, str(run.path), str(tmp_path / "model")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(tmp_path / ".model.partial")
    assert [path.name for path in tmp_path.iterdir()] != []
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 3
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []
