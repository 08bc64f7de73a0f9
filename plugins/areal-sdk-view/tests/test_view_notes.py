"""Tags and notes of runs: kept beside the run, listed, filtered, and changed by the own page alone."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from view_browser import Page
from view_places import check
from view_runs import ATTACK, TOKEN

from areal_sdk_view.export import export
from areal_sdk_view.notes import FILE, NOTHING, read_note, write_note


async def keep(client: aiohttp.ClientSession, status: int = 200, **body: object) -> Any:
    async with client.post("/api/note", json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_a_note_is_kept_beside_its_run_and_listed(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    kept = await keep(client, run="guess-1", tags=[" baseline", "baseline", ""], note="low rate")
    assert kept == {"tags": ["baseline"], "note": "low rate"}
    assert json.loads((runs / "guess-1" / FILE).read_text()) == kept
    async with client.get("/api/runs") as response:
        rows = {row["run"]: (row["tags"], row["note"]) for row in await response.json()}
    assert rows == {"guess-1": (["baseline"], "low rate"), "guess-2": ([], "")}
    async with client.get("/api/runs/guess-1") as response:
        assert (await response.json())["note"] == kept
    assert [path.name for path in (runs / "guess-1").glob(".view*")] == []


async def test_a_note_that_is_none_is_refused_with_the_reason(
    client: aiohttp.ClientSession,
) -> None:
    for body, told in (
        ({"tags": "a", "note": ""}, "a list of texts"),
        ({"tags": [5], "note": ""}, "a list of texts"),
        ({"tags": ["a,b"], "note": ""}, "without commas"),
        ({"tags": [str(number) for number in range(21)], "note": ""}, "at most 20 tags"),
        ({"tags": [], "note": "x" * 4001}, "4001 characters"),
        ({"tags": []}, "a note, a text"),
    ):
        assert told in (await keep(client, 400, run="guess-1", **body))["error"]
    assert "no run" in (await keep(client, 404, run="../guess-1", tags=[], note=""))["error"]
    await keep(client, 400, tags=[], note="")


async def test_a_page_of_another_origin_keeps_no_note(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    body = {"run": "guess-1", "tags": ["stolen"], "note": ""}
    foreign = {"Origin": "http://attacker.example"}
    async with client.post("/api/note", json=body, headers=foreign) as response:
        assert response.status == 403
    assert not (runs / "guess-1" / FILE).exists()


@pytest.mark.parametrize("content", ["", "[1]", '{"tags": 5}', '{"tags": [null], "note": {}}'])
def test_a_damaged_note_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert read_note(tmp_path) == NOTHING


def test_a_note_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).symlink_to(other)
    write_note(tmp_path / "run", ["a"], "")
    assert other.read_text() == "mine"


async def test_tags_are_written_and_filter_the_list_by_keys_alone(
    page: Page, address: str, runs: Path, tmp_path: Path
) -> None:
    await page.open(f"{address}/?token={TOKEN}#run/guess-1")
    await page.press("m")
    await page.until("document.querySelector('dialog[open] input')")
    await page.run(
        "document.querySelector('dialog input').value = 'baseline, wide';"
        f"document.querySelector('dialog textarea').value = {ATTACK!r};"
        "document.querySelector('dialog button').click()"
    )
    await page.until("!document.querySelector('dialog')")
    assert "<script>" in await page.text()
    await page.go("#runs?find=wide")
    shown = await page.text()
    assert "guess-1" in shown
    assert "guess-2" not in shown
    check(page, address)
    file = tmp_path / "page.html"
    file.write_bytes(export(runs / "guess-1", num_episodes=5))
    await page.open(file.as_uri())
    assert "baseline" in await page.text()
    assert page.problems == []
