"""Runs whose every text is hostile: nothing runs in the page, nothing breaks it, and no answer is an error of the server."""

import json
import os
import traceback
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from view_browser import Page
from view_places import check
from view_runs import STEPS, TOKEN, write_run, write_step

from areal_sdk import ArealError, ConfigError, Episode, Outcome, Task, Turn
from areal_sdk.records import FollowedRun
from areal_sdk.testing import RecordedRun
from areal_sdk.types import ErrorKind
from areal_sdk_view.answers.pieces import pieces_of
from areal_sdk_view.api import OF_RUN, encode
from areal_sdk_view.export import export
from areal_sdk_view.library import NotThereError, OpenRun

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
    *("lanes?seconds=1e9", "why", "logs", "plan?since=0&until=9e9"),
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
    run.event(
        "step",
        {
            "step": 2,
            **dict.fromkeys(("engine_update_s", "train/step_s", "train/cpu_main_s"), HOSTILE),
        },
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


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON document: of a list of numbers, that of its first one."""
    yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places_in(one, (*path, key))
    elif isinstance(value, list):
        is_plain = all(isinstance(one, (int, float)) for one in value)
        for place, one in enumerate(value[:1] if is_plain else value):
            yield from places_in(one, (*path, place))


def changed(value: Any, path: tuple[Any, ...], to: object) -> Any:
    """A copy of `value` with another value at `path`."""
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], to)
    return copy


def damaged(text: str, to: object) -> Iterator[tuple[str, str]]:
    """The text of a file with a JSON document a line, or one in all, each time with another value changed; and its
    place."""
    try:
        whole = [json.loads(text)]
        lines: list[Any] = whole
    except json.JSONDecodeError:
        lines = [json.loads(line) for line in text.splitlines()]
    seen = set()
    for number, line in enumerate(lines):
        for path in places_in(line):
            place = (line.get("kind"), *path)
            if place in seen:
                continue  # the same field of another line
            seen.add(place)
            others = [*lines[:number], changed(line, path, to), *lines[number + 1 :]]
            yield "".join(f"{json.dumps(one)}\n" for one in others), ".".join(map(str, place))


def breaks(run: OpenRun) -> Iterator[str]:
    """The answers about a run that would be errors of the server."""
    asked: list[tuple[str, dict[str, str]]] = [
        *((what, {}) for what in ("", "events", "tasks", "failures", "lanes", "why", "logs")),
        ("events", {"names": "."}),
        ("episodes", {"order": "worst", "text": "title"}),
    ]
    for one in run.episodes[-2:]:
        asked += [(what, {"id": one.id}) for what in ("episode", "tokens")]
        asked += [("copy", {"id": one.id, "as": form, "turn": "0"}) for form in ("jsonl", "curl")]
        asked += [("siblings", {"group": one.group}), ("task", {"task": one.task_id})]
    for what, query in asked:
        try:
            encode(OF_RUN[what](run, query))
        except (ArealError, NotThereError, OSError, ValueError):
            pass  # the page says what is damaged
        except Exception as exc:  # noqa: BLE001
            frame = traceback.extract_tb(exc.__traceback__)[-1]
            yield f"{what}: {exc!r:.200} in {frame.filename}:{frame.lineno}"


def write_small(root: Path) -> Path:
    """A run with every file that holds values."""
    path = write_run(root, "small-1")
    run = RecordedRun(path)
    lengths = {"train/step_s": 1.5, "train/publish_s": 0.1, "engine_update_s": 0.1}
    for step, used in ((STEPS + 1, 2.0), (STEPS + 2, 3.0)):
        cpu = {"train/cpu_main_s": used, "train/cpu_engine_s": used}
        run.event("step", {"step": step, "batch/waited_s": 1.0, **lengths, **cpu})
    run.close()
    run_dir = FollowedRun(path).run_dir
    run_dir.record_plugins({"plugin": "1.0"})
    waits = [{"name": "engine", "waited_s": 2.0}]
    run_dir.write_live({"step": 1, "elapsed_s": 7.0, "note": "", "waits": waits})
    return path


def problems_of(path: Path) -> list[str]:
    try:
        run = OpenRun(path)
        run.refresh()
    except ConfigError:
        return []  # no run at all
    except Exception as exc:  # noqa: BLE001
        return [f"no answer at all: {exc!r:.200}"]
    return [*breaks(run)]


WRONG = (HOSTILE, None, 5, -1, 1e300, 2**63, True, [], {}, [None], {"a": None}, [[5]])
"""Values of a wrong type, or out of any range."""
FEW = (HOSTILE, None, -1, [None])


def check_all(path: Path, file: Path, values: Sequence[object]) -> None:
    whole, found = file.read_text(), []
    for to in values:
        for text, place in damaged(whole, to):
            file.write_text(text)
            found += [f"{place} = {to!r:.20}: {one}" for one in problems_of(path)]
    assert found == []


@pytest.mark.long  # some hundred damaged runs, twenty answers each
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "live.json", "ledger.json", "plugins.json", "began.json"]
)
def test_no_value_in_any_file_makes_an_error_of_the_server(tmp_path: Path, name: str) -> None:
    path = write_small(tmp_path)
    check_all(path, path / name, WRONG)


SETTINGS = (
    *("serve = 3", 'serve = "x"', "serve = []", "rollout = 3", 'rollout = "x"', "run = 3"),
    *('rollout = {max_inflight = "8"}', "rollout = {max_inflight = []}", "algorithm = 3"),
    *("agent = 3", "reward = 3", 'model = "tiny"\n[options]\nreward = 3'),
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_setting_makes_an_error_of_the_server(tmp_path: Path, settings: str) -> None:
    path = write_small(tmp_path)
    (path / "config.toml").write_text(f"{settings}\n")
    assert problems_of(path) == []


@pytest.mark.long  # as above
def test_no_value_in_an_index_makes_an_error_of_the_server(tmp_path: Path) -> None:
    path = write_small(tmp_path)
    check_all(path, next(path.glob("episodes/*.index")), FEW)


def write_record(path: Path, text: str) -> None:
    """The run with `text` as the record of its first episode."""
    file = path / "episodes" / "000001.episodes"
    index = file.with_suffix(".index")
    packed = zlib.compress(text.encode())
    first, *rest = index.read_text().splitlines()
    file.write_bytes(packed)
    line = {**json.loads(first), "offset": 0, "length": len(packed)}
    index.write_text("\n".join([json.dumps(line), *rest[-4:], ""]))


@pytest.mark.long  # some hundred damaged runs, twenty answers each
def test_an_episode_with_a_value_of_a_wrong_type_is_shown_or_named_as_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "small-1"
    run = RecordedRun(path)
    write_step(run, 1)
    run.close()
    opened = OpenRun(path)
    opened.refresh()
    whole, found = opened.text(opened.episodes[0]).decode(), []
    for to in WRONG:
        for text, place in damaged(whole, to):
            write_record(path, text)
            found += [f"{place} = {to!r:.20}: {one}" for one in problems_of(path)]
    assert found == []


async def test_an_episode_is_shown_though_the_files_beside_it_are_damaged(
    page: Page, address: str, runs: Path
) -> None:
    path = runs / "guess-1"
    (path / "model").mkdir()
    (path / "model" / "tokenizer.json").write_text('{"a": ')
    (path / "tokens").mkdir()
    (path / "tokens" / "step-000004.npz").write_bytes(b"half of a file")
    (path / "ledger.json").write_text('{"started": 3}')
    await page.open(f"{address}/?token={TOKEN}#run/guess-1/episode/train-4.0")
    text = await page.text()
    assert "The answer is 40." in text
    assert "step-000004.npz is damaged" in text
    await page.go("#run/guess-1/group/train-4")
    assert "4 attempts" in await page.text()
    await page.go("#run/guess-1")
    assert "No books yet" in await page.text()
    check(page, address)


def test_ids_that_no_tokenizer_has_are_shown_as_ids(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(file))
    pieces = pieces_of(tmp_path)
    assert pieces.table([-1, 1 << 40]) == (["-1 ", f"{1 << 40} "], [0, 1])


async def test_settings_that_are_no_runs_are_named(page: Page, address: str, runs: Path) -> None:
    (runs / "other").mkdir()
    (runs / "other" / "config.toml").write_text("[tool]")
    await page.open(f"{address}/?token={TOKEN}#run/other")
    assert "has no model: these are no settings of a run" in await page.text()


async def test_runs_without_a_step_are_compared_over_any_axis(
    page: Page, address: str, runs: Path
) -> None:
    RecordedRun(runs / "killed", settings={"model": "tiny"}).close()
    await page.open(f"{address}/?token={TOKEN}")
    for axis in ("step", "episodes", "tokens", "hours", "cpu"):
        for place in (f"compare?run=killed&run=guess-1&axis={axis}", f"run/killed?axis={axis}"):
            await page.go(f"#{place}")
            assert not await page.run("!!document.querySelector('.problem')"), place
    await page.go("#run/%ZZ")
    assert "no run '%ZZ'" in await page.text()
    page.problems = [one for one in page.problems if "404" not in one]
    check(page, address)
