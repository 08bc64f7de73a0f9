"""Records that are not to be changed, and those of other tools: every view shows them."""

import base64
import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner
from test_view_hostile import problems

from areal_sdk_view.command import view
from areal_sdk_view.export import export


def state_of(root: Path) -> dict[Path, tuple[int, int]]:
    """The size and the time of the last change of each file and directory."""
    found = {path: path.stat() for path in (root, *root.rglob("*"))}
    return {path: (one.st_size, one.st_mtime_ns) for path, one in found.items()}


async def test_a_run_that_nobody_may_write_is_shown_whole_and_stays_as_it_was(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    before = state_of(runs)
    for path in before:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert await problems(client, "guess-1", num_episodes=8) == []
        async with client.get("/api/runs/guess-1/episodes") as response:
            assert len((await response.json())["rows"]) > 20
        assert export(runs / "guess-1", num_episodes=8)
        assert state_of(runs) == before, "a look has written something"
    finally:
        for path in before:
            path.chmod(0o700 if path.is_dir() else 0o600)


def test_a_log_of_inspect_is_shown_with_its_episodes(tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "What is two and two?"},
        {"role": "assistant", "content": "It is four."},
    ]
    output = {"model": "tiny", "choices": [{"message": said[1], "stop_reason": "stop"}]}
    event = {"event": "model", "model": "tiny", "tools": [], "input": said[:1], "output": output}
    about = {"version": 2, "status": "success", "eval": {"eval_id": "e", "task": "sums"}}
    log, page = tmp_path / "log.eval", tmp_path / "page.html"
    with zipfile.ZipFile(log, "w") as archive:
        archive.writestr("header.json", json.dumps(about))
        for epoch, value in ((1, "C"), (2, "I")):
            score = {"scores": {"match": {"value": value}}, "events": [event], "messages": said}
            one = {"id": "s-1", "epoch": epoch, **score}
            archive.writestr(f"samples/s-1_epoch_{epoch}.json", json.dumps(one))
    result = CliRunner().invoke(view, [str(log), "--export", str(page)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answers = carried(page)
    (run,) = answers["runs"]
    rows = answers[f"runs/{run['run']}/episodes"]["rows"]
    assert sorted((row["task_id"], row["reward"]) for row in rows) == [("s-1", 0.0), ("s-1", 1.0)]
    for row in rows:
        episode = answers[f"runs/{run['run']}/episode?id={row['id']}"]
        texts = [block["text"] for message in episode["messages"] for block in message["blocks"]]
        assert texts == ["What is two and two?", "It is four."]


def carried(page: Path) -> Any:
    """The answers in an exported page."""
    found = re.search(r'id="carried">([^<]+)<', page.read_text())
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
