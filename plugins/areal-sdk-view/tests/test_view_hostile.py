"""Runs whose every text is hostile: nothing runs in the page, nothing breaks it, and no answer is an error of the server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from view_browser import Page
from view_places import check
from view_runs import TOKEN

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.records import FollowedRun
from areal_sdk.testing import RecordedRun
from areal_sdk.types import ErrorKind
from areal_sdk_view.export import export

FLAG = "window.ran=1"
HOSTILE = (
    f"\"'></title></style></script><script>{FLAG}</script><img src=x onerror={FLAG}>"
    f"<svg onload={FLAG}><a href='javascript:{FLAG}'>x</a>${{{FLAG}}}{{{{{FLAG}}}}}"
    "\x1b]0;title\x07\x1b[2J\x1b[31m\x00\x7f\r\u202egnirts\u2028\ud800 \udfff\ufffe\U0001f600 % ../ # ? & ~"
)
"""Scripts, HTML, a script as an address, templates, orders to a terminal, and half characters."""
NAME = f"<img src=x onerror={FLAG}> %2e & #x"
"""Name of a run; a directory has no slash."""
HUGE = 10_000_000
ASKED = (
    *("", "events?names=.", "episodes", "episodes?text=title&order=worst", "tasks", "failures"),
    *("lanes?seconds=1e9", "why"),
)
"""Answers about a run; those about one episode, task and group follow from its episodes."""


def hostile_episode(
    number: int, group: str, *, error: bool = False, is_newer: bool = False
) -> Episode:
    """An episode with a hostile text wherever a caller, a model or a tool may put one. `is_newer`: also in the fields
    whose words this version knows."""
    told = {
        "role": HOSTILE,
        "name": HOSTILE,
        "content": [{"type": HOSTILE, "text": HOSTILE}, {"type": "image_url", HOSTILE: HOSTILE}, 5],
    }
    called = {"name": HOSTILE, "arguments": json.dumps({HOSTILE: HOSTILE})}
    said = {
        "role": "assistant",
        "content": f"<think>{HOSTILE}</think>{HOSTILE}",
        "reasoning_content": HOSTILE,
        "tool_calls": [{"id": HOSTILE, "function": called}],
    }
    result = {"role": "tool", "tool_call_id": HOSTILE, "content": f"error: {HOSTILE}"}
    odd = {"role": 5, "content": {"a": HOSTILE}, "tool_calls": 7, "name": ["x"]}
    broken = {"tool_calls": [{"function": HOSTILE}, HOSTILE, None, {"function": {"name": 5}}]}
    turn = Turn(
        (1, 2),
        (3 + number, 999_999_999),
        (-0.5, -0.25),
        (0, 0),
        said,
        (told, result, odd, broken),
        duration_s=0.1,
        **({"finish_reason": HOSTILE, "excluded": HOSTILE} if is_newer else {}),
    )
    outcome = Outcome.scored(float(number), metrics={HOSTILE: 1.0})
    if error:
        outcome = Outcome.failed(ErrorKind.AGENT, HOSTILE, trace=HOSTILE)
    task = Task(HOSTILE, {HOSTILE: [HOSTILE, float("nan")]})
    return Episode(f"{HOSTILE}{number}", task, (turn,), outcome, group=group, duration_s=0.5)


def write_hostile(root: Path, name: str) -> Path:
    """A run with a hostile text in every field that a run writes."""
    settings = {
        "agent": HOSTILE,
        "algorithm": {"name": HOSTILE},
        "reward": {HOSTILE: HOSTILE},
        "run": {"steps": 2},
    }
    text = HOSTILE.encode("utf-8", "replace").decode()  # TOML has no half characters
    run = RecordedRun(
        root / name,
        settings=json.loads(json.dumps(settings).replace(json.dumps(HOSTILE), json.dumps(text))),
    )
    episodes = [hostile_episode(number, HOSTILE) for number in range(3)]
    run.step(
        1,
        [(one, ()) for one in episodes],
        advantages={one.id: float(n) - 1 for n, one in enumerate(episodes)},
        metrics={HOSTILE: 1.0, f"batch/outcome/{HOSTILE}": 1.0, "train/loss": float("inf")},
    )
    run.drop(hostile_episode(7, HOSTILE, error=True), "error_agent")
    run.drop(hostile_episode(9, "", is_newer=True), "stale")
    run.measure(hostile_episode(8, ""), split="eval")
    for level in ("note", "warning", HOSTILE):
        run.event("notice", {"step": 1, "level": level, "text": HOSTILE})
    run.event("eval", {"name": HOSTILE, "split": HOSTILE, "step": 1, "success": 0.5, "tasks": 2})
    run.event("failed", {"step": 1, "error": HOSTILE})
    run_dir = FollowedRun(run.path).run_dir
    run_dir.record_plugins({HOSTILE: HOSTILE})
    waits = [{"name": HOSTILE, "waited_s": 2.0}]
    run_dir.write_live({"step": 1, "elapsed_s": 7.0, "note": HOSTILE, "waits": waits})
    run_dir.logs.mkdir(exist_ok=True)
    (run_dir.logs / f"{NAME}.log").write_text(HOSTILE.encode("utf-8", "replace").decode())
    run.close()
    return run.path


def write_misnamed(root: Path) -> None:
    """A run in a directory whose name is no text."""
    path = Path(os.fsdecode(os.fsencode(root) + b"/half \xff\xfe name"))
    path.mkdir()
    (path / "config.toml").write_text('model = "tiny"\n')


async def problems(
    client: aiohttp.ClientSession, run: str, *, num_episodes: int = 100
) -> list[str]:
    """Answers about a run, and about its newest episodes and their tasks and groups, that are errors of the server."""
    found = []

    async def ask(path: str) -> Any:
        async with client.get(f"/api/{path}") as response:
            body = await response.text()
            if response.status >= 500:
                found.append(f"{path[:120]}: {response.status}")
            return json.loads(body) if response.status == 200 else None

    name = quote(run, safe="")
    await ask("runs")
    await ask(f"compare?run={name}")
    await ask(f"compare/tasks?run={name}&run={name}")
    for what in ASKED:
        await ask(f"runs/{name}/{what}" if what else f"runs/{name}")
    rows = (await ask(f"runs/{name}/episodes") or {"rows": []})["rows"][:num_episodes]
    for row in rows:
        one = quote(str(row["id"]), safe="")
        await ask(f"runs/{name}/episode?id={one}")
        await ask(f"runs/{name}/tokens?id={one}")
        await ask(f"runs/{name}/text?id={one}&message=0&block=0")
    for group in {str(row["group"]) for row in rows}:
        await ask(f"runs/{name}/siblings?group={quote(group, safe='')}")
    for task in {str(row["task_id"]) for row in rows}:
        await ask(f"runs/{name}/task?task={quote(task, safe='')}")
    return found


async def test_no_answer_about_a_hostile_run_is_an_error_of_the_server(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    write_hostile(runs, NAME)
    assert await problems(client, NAME) == []
    async with client.get(f"/api/runs/{quote(NAME, safe='')}/episodes") as response:
        assert len((await response.json())["rows"]) == 6
    write_misnamed(runs)
    assert await problems(client, "guess-1") == []
    async with client.get("/api/runs") as response:
        assert len(await response.json()) == 4


async def places_of(client: aiohttp.ClientSession, run: str) -> list[str]:
    """Every view of a run whose names may be anything."""
    name = quote(run, safe="")
    async with client.get(f"/api/runs/{name}/episodes") as response:
        rows = (await response.json())["rows"]
    tabs = ("curves?names=.", "episodes", "tasks", "failures", "lanes", "settings", "why")
    found = ["#runs", *(f"#run/{name}/{tab}" for tab in tabs), f"#compare?run={name}&run=guess-1"]
    for row in rows:
        found.append(f"#run/{name}/episode/{quote(row['id'], safe='')}?quote=script")
        found.append(f"#run/{name}/task/{quote(row['task_id'], safe='')}")
        if row["group"]:
            found.append(f"#run/{name}/group/{quote(row['group'], safe='')}")
    return list(dict.fromkeys(found))


async def visit(page: Page, places: list[str]) -> None:
    """Show each place: nothing ran, nothing became an element, and no view failed."""
    for place in places:
        await page.run(f"document.body.dataset.ready = ''; location.hash = {json.dumps(place)}")
        await page.until("document.body.dataset.ready")
        assert await page.run("window.ran") is None, place
        made = "document.querySelectorAll('#main :is(script, img, iframe, object, style, [onload], [onerror])')"
        assert await page.run(f"{made}.length") == 0, place
        assert await page.run("document.querySelectorAll('[href^=\"javascript\" i]').length") == 0
        shown = await page.run("document.querySelector('#main > div > p.problem')?.innerText")
        assert shown is None or "ended by" in shown or "is not readable" in shown, place


@pytest.mark.long  # 13 s
async def test_nothing_that_a_hostile_run_says_acts_in_the_page(
    page: Page, address: str, client: aiohttp.ClientSession, runs: Path, tmp_path: Path
) -> None:
    path = write_hostile(runs, NAME)
    places = await places_of(client, NAME)
    await page.open(f"{address}/?token={TOKEN}")
    await visit(page, places)
    assert "<script>" in await page.text()
    page.problems[:] = [
        one for one in page.problems if "410 (Gone)" not in one
    ]  # the newer episode
    check(page, address)
    file = tmp_path / "page.html"
    file.write_bytes(export(path, num_episodes=500))
    await page.open(file.as_uri())
    await visit(
        page,
        [one for one in places if not any(part in one for part in ("compare", "names", "~9?"))],
    )
    assert page.problems == []


@pytest.mark.long  # 11 s
async def test_a_message_of_ten_megabytes_is_shown_by_parts(
    page: Page, address: str, client: aiohttp.ClientSession, runs: Path
) -> None:
    asked = {"role": "user", "content": HOSTILE + "long " * (HUGE // 5)}
    said = {"role": "assistant", "content": HOSTILE}
    turn = Turn((1,), (2,), (-0.5,), (0,), said, (asked,))
    run = RecordedRun(runs / "guess-1")
    run.measure(Episode("huge", Task("h"), (turn,), Outcome.scored(1.0)))
    run.close()
    assert await problems(client, "guess-1") == []
    await page.open(f"{address}/?token={TOKEN}")
    await visit(page, ["#run/guess-1/episode/huge", "#run/guess-1/episodes?text=long+long"])
    assert "huge" in await page.text()
    check(page, address)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the values that hold no others."""
    if isinstance(value, (dict, list)) and value:
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, (*path, key))
    else:
        yield path


def changed(value: Any, path: tuple[Any, ...], to: object) -> Any:
    """A copy of `value` with another value at `path`."""
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], to)
    return copy


def damaged(text: str, to: object) -> Iterator[str]:
    """The text of a file with a JSON document a line, or one in all, each time with another value changed."""
    try:
        whole = [json.loads(text)]
        lines: list[Any] = whole
    except json.JSONDecodeError:
        lines = [json.loads(line) for line in text.splitlines()]
    seen = set()
    for number, line in enumerate(lines):
        for path in leaves(line):
            place = (line.get("kind"), *path)
            if place in seen:
                continue  # the same field of another line
            seen.add(place)
            others = [*lines[:number], changed(line, path, to), *lines[number + 1 :]]
            yield "".join(f"{json.dumps(one)}\n" for one in others)


@pytest.mark.long  # some hundred damaged runs, twenty answers each
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "live.json", "ledger.json", "plugins.json", "began.json", "index"]
)
async def test_no_field_of_any_file_makes_an_error_of_the_server(
    client: aiohttp.ClientSession, runs: Path, name: str
) -> None:
    run_dir = FollowedRun(runs / "guess-1").run_dir
    run_dir.record_plugins({"plugin": "1.0"})
    waits = [{"name": "engine", "waited_s": 2.0}]
    run_dir.write_live({"step": 1, "elapsed_s": 7.0, "note": "", "waits": waits})
    path = runs / "guess-1"
    file = next(path.glob("episodes/*.index")) if name == "index" else path / name
    found: dict[str, list[str]] = {}
    for number, text in enumerate(damaged(file.read_text(), HOSTILE)):
        other = runs / f"damaged-{number}"
        other.mkdir()
        for one in path.iterdir():
            (other / one.name).symlink_to(one)
        copy = other / file.relative_to(path)
        if name == "index":
            copy.parent.unlink()
            copy.parent.mkdir()
            for one in file.parent.iterdir():
                (copy.parent / one.name).symlink_to(one)
        copy.unlink()
        copy.write_text(text)
        if broken := await problems(client, other.name, num_episodes=2):
            found[text[:2000]] = broken
        for one in [*copy.parent.iterdir()] if name == "index" else []:
            one.unlink()
        if name == "index":
            copy.parent.rmdir()
        for one in other.iterdir():
            one.unlink()
        other.rmdir()
    assert found == {}
