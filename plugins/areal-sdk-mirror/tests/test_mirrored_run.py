"""A run goes to its mirror and comes back, by public names: the wheel of this package is enough."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk import Episode, Outcome, Run, Task
from areal_sdk.errors import ConfigError, DamagedError
from areal_sdk.testing import RecordedRun
from areal_sdk_mirror.command import fetch
from areal_sdk_mirror.fetching import fetch_to_go_on
from areal_sdk_mirror.mirror import Mirror

DEADLINE_S = 60.0


def recorded(path: Path, *steps: int) -> Path:
    """A run that has taken the steps, with a checkpoint of each."""
    run = RecordedRun(path)
    for step in steps:
        episode = Episode(f"episode-{step}", Task("task"), (), Outcome.scored(1.0))
        run.step(step, [(episode, ())], advantages={episode.id: 0.0})
        checkpoint = path / "checkpoints" / f"step-{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(bytes([step]) * 1000)
    run.close()
    return path


def mirrored(run: Path, url: str, *, keep: int = 2) -> None:
    mirror = Mirror(run, url, keep=keep, how_to_resume="resume it")
    mirror.begin()
    mirror.finish(within_s=DEADLINE_S)


@pytest.fixture(params=["path", "address"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "path":
        yield str(tmp_path / "shared" / "run")
        return
    import fsspec

    yield f"memory://bucket/{tmp_path.name}/run"
    fsspec.filesystem("memory").rm(f"/bucket/{tmp_path.name}", recursive=True)


def test_a_run_comes_back_with_the_checkpoint_from_which_it_goes_on(
    url: str, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run", 1, 2, 3)
    mirrored(run, url)
    found = fetch_to_go_on(url, default=tmp_path / "copies")
    assert found == tmp_path / "copies" / "run"
    assert Run(found).metrics() == Run(run).metrics()
    assert [row["id"] for row in Run(found).episodes()] == ["episode-1", "episode-2", "episode-3"]
    assert [path.name for path in (found / "checkpoints").iterdir()] == ["step-000003"]
    with pytest.raises(ConfigError, match="exists: a run that is fetched gets a new directory"):
        fetch_to_go_on(url, default=tmp_path / "copies")


def test_the_command_copies_all_checkpoints_and_writes_a_report(url: str, tmp_path: Path) -> None:
    mirrored(recorded(tmp_path / "run", 1, 2, 3), url)
    copy = tmp_path / "copy"
    ended = CliRunner().invoke(fetch, [url, "--to", str(copy)], catch_exceptions=False)
    assert f"look at it with: areal-sdk inspect {copy}" in ended.output
    names = sorted(path.name for path in (copy / "checkpoints").iterdir())
    assert names == ["step-000001", "step-000002", "step-000003"]
    assert "<html" in (copy / "report.html").read_text()


def test_a_file_that_changed_at_the_mirror_is_named(tmp_path: Path) -> None:
    url = tmp_path / "shared"
    mirrored(recorded(tmp_path / "run", 1), str(url))
    (file,) = url.glob("checkpoints/step-000001.*/model.safetensors")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(DamagedError, match=r"the content of model\.safetensors has changed"):
        fetch_to_go_on(str(url), default=tmp_path / "copies")
    assert not (tmp_path / "copies" / "shared").exists()


def test_another_run_and_a_directory_that_is_behind_are_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "shared")
    run = recorded(tmp_path / "run", 1, 2)
    mirrored(run, url)
    with pytest.raises(ConfigError, match="holds another run"):
        mirrored(recorded(tmp_path / "other", 1), url)
    (run / "checkpoints" / "step-000002").rename(tmp_path / "lost")
    with pytest.raises(ConfigError, match=r"is ahead of .* \(step 2 against step 1\)"):
        mirrored(run, url)
    assert set(json.loads((run / "id.json").read_text())) == {"id", "writer", "before"}


def test_a_login_in_an_address_is_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch_to_go_on("no-such-scheme://me:secret@host/run", default=tmp_path)
    assert "secret" not in str(caught.value)
