"""The answers of the server about run directories that the writers of a real run made."""

import math
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray
from view_runs import ATTACK, GROUP, STEPS, add_failures, evaluate, write_run, write_step

import areal_sdk_view
from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.records import EpisodeRecord, EpisodeTokens, FollowedRun, TokenFlag, TurnTokens
from areal_sdk.testing import RecordedRun
from areal_sdk.types import ErrorKind
from areal_sdk_view.answers.columns import columns_of
from areal_sdk_view.answers.pieces import Pieces
from areal_sdk_view.answers.tasks import through_training
from areal_sdk_view.api import OF_RUN
from areal_sdk_view.library import Library, OpenRun
from areal_sdk_view.notes import write_note

MOST_LINES = 5000
"""Lines of the viewer, in all its languages."""


async def get(client: aiohttp.ClientSession, path: str, status: int = 200, **query: str) -> Any:
    async with client.get(f"/api/{path}", params=query) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_the_list_has_every_run_and_how_it_ended(client: aiohttp.ClientSession) -> None:
    listed = await get(client, "runs")
    assert {row["run"]: row["state"] for row in listed} == {
        "guess-1": "finished",
        "guess-2": "finished",
    }
    assert listed[0]["held_out"] == {"measure": "success", "before": 0.25, "after": 0.75}


async def test_a_run_is_told_with_its_ledger_which_balances(client: aiohttp.ClientSession) -> None:
    about = await get(client, "runs/guess-1")
    books = about["ledger"]
    assert (
        books["started"] == books["trained"] + sum(books["dropped"].values()) == GROUP * STEPS + 1
    )
    assert about["num_episodes"] == GROUP * STEPS + 1
    assert about["settings"]["algorithm"]["name"] == "grpo"


async def test_a_checkpoint_that_is_deleted_while_it_is_listed_is_no_event(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    checkpoints = runs / "guess-1" / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "step-000007").mkdir()
    (checkpoints / "step-000008").symlink_to(checkpoints / "nowhere")
    happened = (await get(client, "runs/guess-1/events"))["happened"]
    assert [event["step"] for event in happened if event["kind"] == "checkpoint"] == [7]


async def test_readings_have_one_number_a_token_and_damaged_ones_are_left_out(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    tokens = await get(client, "runs/guess-1/tokens", id="train-4.0")
    sampled, first, last = tokens["readings"]
    assert [sampled["model"], first["model"]] == ["as sampled", "step-000001"]
    assert sampled["logprob"] == first["logprob"] == tokens["columns"]["logprob"]
    changes = [
        b - a for a, b in zip(first["logprob"], last["logprob"], strict=True) if a is not None
    ]
    assert changes == pytest.approx([0.0] * 3 + [0.4] * 2)
    assert last["likeliest"][8] == [["4 ", -0.5], ["6 ", -1.5]]
    assert tokens["pair"] == [1, 2]
    other = await get(client, "runs/guess-1/tokens", id="train-4.1")
    assert other["pair"] == []
    assert other["reread"] == f"areal-sdk reread {runs / 'guess-1'} train-4.1"
    (change,) = (await get(client, "runs/guess-1/task", task="t-1"))["changes"]
    assert (change["id"], change["token"], change["text"]) == ("train-4.0", 8, "20 ")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"episode": [], "model": 1, "turns": []}',
        b'{"episode": "train-4.1", "model": 1, "turns": 5}',
        b'{"episode": "train-4.1", "model": 1, "turns": [[], []]}',
        b'{"episode": "train-4.1", "model": 1, "turns": [{"logprobs": [1, 2, 3], "likeliest": [[[1e99, 0]], [], []]}]}',
        b'{"episode": "train-4.1", "model": 1, "turns": [{"logprobs": ["x", 2, 3]}, {"logprobs": [1, 2]}]}',
        b"\xff\x00",
    ],
)
async def test_a_reading_that_a_stranger_wrote_breaks_no_page(
    client: aiohttp.ClientSession, runs: Path, line: bytes
) -> None:
    with (runs / "guess-1/readings.jsonl").open("ab") as file:
        file.write(b"\n" + line + b"\n")
    assert (await get(client, "runs/guess-1/tokens", id="train-4.1"))["pair"] == []


async def test_curves_come_as_columns_with_what_happened_beside_them(
    client: aiohttp.ClientSession,
) -> None:
    events = await get(client, "runs/guess-1/events")
    assert events["columns"]["step"] == [1, 2, 3, 4, 5, 6]
    assert events["columns"]["train/loss"][1] is None  # not a number is no number
    assert [row["success"] for row in events["evaluations"]] == [0.25, 0.75]
    assert events["happened"][0]["text"] == f"slow {ATTACK}"
    assert "other/thing" in events["names"]
    assert "other/thing" not in events["columns"]
    more = await get(client, "runs/guess-1/events", names="^other")
    assert more["columns"]["other/thing"] == [1.0] * STEPS


async def test_an_unfinished_expression_for_metrics_is_refused_by_name(
    client: aiohttp.ClientSession,
) -> None:
    refused = await get(client, "runs/guess-1/events", 400, names="(")
    assert "names = '(' is no regular expression" in refused["error"]


async def test_a_step_that_a_resume_took_again_is_in_the_curves_once(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    assert (await get(client, "runs/guess-1/events"))["columns"]["step"][-1] == STEPS
    run = RecordedRun(runs / "guess-1")
    run.resume(4)
    write_step(run, 5)
    run.close()
    events = await get(client, "runs/guess-1/events")
    assert events["columns"]["step"] == [1, 2, 3, 4, 5]
    assert events["num_resumes"] == 1
    found = await get(client, "runs/guess-1/episodes", where="split == train and step > 0")
    assert found["found"] == 5 * GROUP


async def test_a_failure_is_drawn_at_the_step_before_it(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    run = RecordedRun(runs / "guess-1")
    run.event("failed", {"error": "EngineError: gone"})  # as a run writes it: without a step
    run.close()
    happened = (await get(client, "runs/guess-1/events"))["happened"]
    assert [one["step"] for one in happened if one["kind"] == "failed"] == [STEPS]


async def test_a_warm_up_that_a_resume_took_again_is_in_the_curves_once(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    run = RecordedRun(runs / "warmed")
    for losses in ((3.0, 2.0, 1.0), (2.5, 1.5)):
        for step, loss in enumerate(losses, start=1):
            run.event("sft", {"step": step, "loss": loss})
        run.resume(0)
    run.close()
    events = await get(client, "runs/warmed/events")
    assert events["warm_up"] == {"step": [1, 2, 3], "loss": [2.5, 1.5, 1.0]}


async def test_episodes_are_filtered_sorted_and_cut_into_pages(
    client: aiohttp.ClientSession,
) -> None:
    bad = await get(client, "runs/guess-1/episodes", where="reward < 0.1")
    assert {row["reward"] for row in bad["rows"]} == {0.0}
    best = await get(client, "runs/guess-1/episodes", order="best", limit="2", offset="1")
    assert [row["reward"] for row in best["rows"]] == [1.0, 0.8]
    assert best["total"] == GROUP * STEPS + 1
    siblings = await get(client, "runs/guess-1/episodes", group="train-3")
    assert siblings["found"] == GROUP
    refused = await get(client, "runs/guess-1/episodes", 400, where="rewrad < 1")
    assert "rewrad" in refused["error"]


async def test_full_text_is_found_in_every_message(client: aiohttp.ClientSession) -> None:
    found = await get(client, "runs/guess-1/episodes", text="WHAT IS 3 TIMES")
    assert {row["group"] for row in found["rows"]} == {"train-3"}
    assert found["scanned"] == found["found"] == GROUP * STEPS + 1
    assert not (await get(client, "runs/guess-1/episodes", text="nowhere said"))["rows"]


@pytest.mark.parametrize("text", ["logprobs", "assistant", "new_messages", "[4"])
async def test_what_only_the_form_of_the_record_says_is_not_found(
    client: aiohttp.ClientSession, text: str
) -> None:
    assert not (await get(client, "runs/guess-1/episodes", text=text))["rows"]


@pytest.mark.parametrize("text", ["ÉTÉ à", "été À  Paris", "paris-7", "où?", "keyerror: É"])
async def test_full_text_does_not_look_at_the_case_of_any_letter(
    client: aiohttp.ClientSession, runs: Path, text: str
) -> None:
    run = RecordedRun(runs / "guess-1")
    said = Turn((1,), (2,), (-0.5,), (3,), {"role": "assistant", "content": "L'Été à\nParis"}, ())
    failed = Outcome.failed(ErrorKind.AGENT, "agent: KeyError: É (agent.py:5)")
    task = Task("Paris-7", {"question": "OÙ?"})
    run.drop(Episode("summer", task, (said,), failed), "error_agent")
    run.close()
    found = await get(client, "runs/guess-1/episodes", text=text)
    assert [row["id"] for row in found["rows"]] == ["summer"]


async def test_an_episode_has_its_messages_turns_and_siblings(
    client: aiohttp.ClientSession,
) -> None:
    one = await get(client, "runs/guess-1/episode", id="train-2.3")
    assert [message["role"] for message in one["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [block["kind"] for block in one["messages"][1]["blocks"]] == ["thought", "text", "call"]
    assert one["messages"][3]["blocks"][0]["text"] == ATTACK
    assert one["turns"][1]["fork"] == "compaction"
    assert [other["id"] for other in one["siblings"]] == [f"train-2.{n}" for n in range(GROUP)]


async def test_a_long_text_comes_in_parts(client: aiohttp.ClientSession) -> None:
    one = await get(client, "runs/guess-1/episode", id="train-2.3")
    block = one["messages"][2]["blocks"][0]
    assert block["length"] == 30_000
    rest = await get(
        client,
        "runs/guess-1/text",
        id="train-2.3",
        message="2",
        block="0",
        start=str(len(block["text"])),
    )
    assert block["text"] + rest["text"] == "x" * 30_000


async def test_texts_of_any_size_and_broken_unicode_stay_answers(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    size = 10_000_000
    asked = {"role": "user", "content": "long " * (size // 5)}
    said = {
        "role": "assistant",
        "content": "half a pair: \ud800, \x00 and \x1b[2J",
    }
    turn = Turn(
        (1,),
        (2,),
        (-0.5,),
        (0,),
        said,
        (asked, {"content": [{"type": "image_url"}, 5], "tool_calls": [None, {}]}),
    )
    run = RecordedRun(runs / "guess-1")
    run.drop(Episode("strange", Task("s"), (turn,), Outcome.scored(1.0)), "stale")
    run.close()
    one = await get(client, "runs/guess-1/episode", id="strange")
    blocks = [message["blocks"] for message in one["messages"]]
    assert blocks[0][0]["length"] == size
    assert len(blocks[0][0]["text"]) < 100_000
    assert [block["kind"] for block in blocks[1]] == ["data", "data", "call", "call"]
    assert blocks[2][0]["text"].startswith("half a pair: ")
    part = await get(
        client, "runs/guess-1/text", id="strange", message="0", block="0", start=str(size - 5)
    )
    assert part["text"] == "long "
    await get(client, "runs/guess-1/text", 400, id="strange")
    await get(client, "runs/guess-1/text", 404, id="strange", message="99", block="0")
    found = await get(client, "runs/guess-1/episodes", text="half a pair")
    assert [row["id"] for row in found["rows"]] == ["strange"]


async def test_every_token_comes_once_with_what_is_known_of_it(
    client: aiohttp.ClientSession,
) -> None:
    tokens = await get(client, "runs/guess-1/tokens", id="train-2.0")
    assert tokens["ids"] == [1, 2, 3, 4, 10, 6, 7, 8, 20, 6]
    columns = tokens["columns"]
    assert columns["sampled"] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert columns["mask"] == [None, None, None, 0, 0, 0, None, None, 1, 1]
    assert columns["version"] == [None, None, None, 1, 1, 1, None, None, 1, 2]
    assert columns["logprob"][4] == -1.5
    forked = await get(client, "runs/guess-1/tokens", id="train-2.3")
    assert forked["ids"] == [1, 2, 3, 4, 11, 6, 9, 23, 6]


async def test_siblings_are_aligned_at_the_first_token_that_differs(
    client: aiohttp.ClientSession,
) -> None:
    aligned = await get(client, "runs/guess-1/siblings", group="train-4")
    assert aligned["num_common"] == 1  # the last sibling's branch shares the first token alone
    rows = {row["summary"]["id"]: row for row in aligned["rows"]}
    assert [row["as_above"] for row in aligned["rows"]] == [0, 7, 3, 0]
    assert rows["train-4.0"]["summary"]["reward"] == 0.0
    assert rows["train-4.3"]["columns"]["sampled"] == [0, 1, 1]


async def test_a_task_is_followed_through_training(client: aiohttp.ClientSession) -> None:
    listed = await get(client, "runs/guess-1/tasks")
    assert {row["task"] for row in listed["rows"]} == {"t-0", "t-1", "t-2", "t-9"}
    one = await get(client, "runs/guess-1/task", task="t-1")
    assert len(one["attempts"]) == 2 * GROUP
    assert sum(window["num"] for window in one["band"]) == 2 * GROUP
    await get(client, "runs/guess-1/task", 404, task="nothing")


async def test_a_run_that_only_measures_shows_the_tasks_that_it_measures(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    evaluate(runs / "eval-1", step=0, rewards={"a": [1, 0], "b": [0]})
    listed = await get(client, "runs/eval-1/tasks")
    assert (listed["split"], listed["num"], listed["num_evaluations"]) == ("eval", 2, 1)


async def test_attempts_at_a_task_are_those_of_one_split(runs: Path) -> None:
    run = RecordedRun(runs / "both")
    for number, reward in enumerate((0.0, 1.0)):
        run.drop(Episode(f"train-{number}", Task("t"), (), Outcome.scored(reward)), "stale")
    for number in range(3):
        run.measure(Episode(f"eval-{number}", Task("t"), (), Outcome.scored(1.0)))
    run.close()
    followed = OpenRun(run.path)
    followed.refresh()
    of_train, of_eval = (
        through_training(followed, {"task": "t", **q}) for q in ({}, {"split": "eval"})
    )
    assert (of_train["split"], of_train["num"], of_train["splits"]) == (
        "train",
        2,
        ["eval", "train"],
    )
    assert (of_eval["num"], of_eval["band"][0]["mean"]) == (3, 1.0)


async def test_a_name_that_an_answer_lacks_is_not_taken_for_a_missing_run(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await get(client, "runs/nothing", 404))["error"] == "no run 'nothing'"
    assert (await get(client, "compare", 404, run="nothing"))["error"] == "no run 'nothing'"

    def fail(run: FollowedRun, query: object) -> None:
        raise KeyError("kind")

    monkeypatch.setitem(OF_RUN, "lanes", fail)
    async with client.get("/api/runs/guess-1/lanes") as response:
        assert response.status == 500


async def test_failures_that_ended_alike_are_one_group_with_their_course_and_their_episodes(
    client: aiohttp.ClientSession,
) -> None:
    groups = (await get(client, "runs/guess-1/failures"))["groups"]
    assert [(group["kind"], group["num"]) for group in groups] == [
        ("no success", 18),
        ("no success", 4),
        ("error_agent", 1),
    ]
    assert groups[0]["name"] == {"last calls": "multiply", "last answer": "The answer is #."}
    assert groups[0]["over"] == [3, 3, 3, 3, 3, 3]
    for group in groups:
        found = await get(client, "runs/guess-1/episodes", failure=group["id"])
        assert found["found"] == sum(group["over"]) == group["num"]
    await get(client, "runs/guess-1/episodes", 404, failure="train:none")


async def test_why_gives_the_findings_of_the_command(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    assert (await get(client, "runs/guess-1/why"))["findings"] == []
    add_failures(runs / "guess-2")
    (finding,) = (await get(client, "runs/guess-2/why"))["findings"]
    assert (finding["fault"], finding["warns_early"]) == ("agent errors", True)


async def test_runs_are_compared_by_the_settings_that_differ(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/compare?run=guess-1&run=guess-2") as response:
        compared = await response.json()
    assert compared["settings"] == {"trainer.learning_rate": [0.001, 0.002]}
    assert compared["figures"]["guess-1"]["held-out after"] == 0.75


async def test_what_is_not_there_is_said_in_json(client: aiohttp.ClientSession) -> None:
    assert "guess-9" in (await get(client, "runs/guess-9", 404))["error"]
    assert "no episode" in (await get(client, "runs/guess-1/episode", 404, id="nobody"))["error"]
    await get(client, "runs/guess-1/nothing", 404)
    await get(client, "runs/..%2F..%2Fetc", 404)


async def test_what_a_live_run_appends_is_read_on(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    before = await get(client, "runs/guess-2")
    run = RecordedRun(runs / "guess-2")
    write_step(run, STEPS + 1)
    after = await get(client, "runs/guess-2")
    assert after["num_episodes"] == before["num_episodes"] + GROUP
    newest = await get(client, "runs/guess-2/episodes", limit="1")
    assert newest["rows"][0]["step"] == STEPS + 1
    run.close()


def test_the_episodes_of_a_group_are_found_in_a_run_that_grows_and_goes_back(runs: Path) -> None:
    opened, path = OpenRun(runs / "guess-1"), runs / "guess-1"

    def found() -> dict[str, list[str]]:
        opened.refresh()
        groups = {one.group for one in opened.episodes}
        for group in groups:
            alike = [one for one in opened.episodes if one.group == group]
            assert opened.of("group", group) == alike
        assert opened.of("task_id", "t-1") == [e for e in opened.episodes if e.task_id == "t-1"]
        return {group: [one.id for one in opened.of("group", group)] for group in groups}

    before = found()
    run = RecordedRun(path)
    write_step(run, STEPS + 1)
    assert found().keys() - before.keys() == {f"train-{STEPS + 1}"}
    (_, num, places) = opened._by_field["group"]
    run.drop(Episode("late", Task("t-1"), (), Outcome.scored(0.0), group="train-2"), "stale")
    assert "late" in found()["train-2"]
    assert opened._by_field["group"][1:] == (num + 1, places)
    assert opened._by_field["group"][2] is places, "read on, not anew"
    run.resume(STEPS - 1)
    run.close()
    assert f"train-{STEPS}" not in found()
    assert opened.of("group", f"train-{STEPS}") == []


def test_a_tab_hears_of_episodes_though_evaluations_have_files_of_their_own(runs: Path) -> None:
    for step in range(3):  # each writer begins a file
        evaluate(runs / "guess-1", step=step, rewards={"a": [1.0]})
    library = Library([runs])
    before = library.state("guess-1")
    with sorted((runs / "guess-1/episodes").glob("0*.index"))[-1].open("a") as index:
        index.write('{"newer": 1}\n')
    assert library.state("guess-1") != before


def test_a_tab_hears_that_a_run_was_killed_or_got_a_note(runs: Path) -> None:
    library = Library([runs])
    with FollowedRun(runs / "guess-1").run_dir.in_use():
        running = library.state("guess-1"), library.state("")
    killed = library.state("guess-1"), library.state("")
    write_note(runs / "guess-1", ["odd"], "")
    noted = library.state("guess-1"), library.state("")
    for one, other in ((running, killed), (killed, noted)):
        assert one[0] != other[0]
        assert one[1] != other[1]


def test_the_tab_of_the_list_hears_of_a_new_run(runs: Path) -> None:
    library = Library([runs])
    before = library.state("")
    write_run(runs, "guess-3")
    assert library.state("") != before


async def test_an_assistant_opens_a_place_in_every_tab(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/stream?run=guess-1") as stream:
        assert await stream.content.readline() == b": open\n"
        place = {"run": "guess-1", "episode": "train-2.3", "quote": "answer"}
        async with client.post("/api/view", json=place) as response:
            assert await response.json() == {"tabs": 1}
        lines = [await stream.content.readline() for _ in range(3)]
        assert lines[1] == b"event: view\n"
        assert b'"quote":"answer"' in lines[2]
    async with client.post("/api/view", json={"run": "nothing"}) as response:
        assert response.status == 404


def test_what_a_step_made_of_a_token_is_a_column_with_the_reason() -> None:
    def numbers(*values: float) -> NDArray[np.float32]:
        return np.array(values, np.float32)

    nothing = numbers(math.nan, math.nan)
    flags = np.array([TokenFlag.COUNTED | TokenFlag.TERM | TokenFlag.CLIPPED_LOW, 0], np.uint8)
    turn = TurnTokens(
        flags=flags,
        advantage=numbers(-0.5, math.nan),
        logprob=nothing,
        proximal=nothing,
        reference=nothing,
        ratio=numbers(1.25, math.nan),
        weight=numbers(math.inf, math.nan),
        loss=nothing,
        entropy=numbers(0.75, math.nan),
        value=nothing,
        target=nothing,
    )
    first = Turn((1,), (2, 3), (-0.25, -1.0), (4, 5))
    episode = Episode("e", Task("t"), (first,), Outcome.scored(1.0))
    seen = EpisodeTokens(3, 4, (turn,), 1.0, {}, 1.0, 2.0, True)
    (columns,) = columns_of(EpisodeRecord(episode, step=3), seen)
    assert columns["advantage"] == [-0.5, None]
    assert columns["entropy"] == [0.75, None]
    assert columns["ratio"] == [1.25, None]
    assert columns["weight"] == [None, None], "an infinite weight is no number"
    assert columns["why"] == ["clipped low", "not counted by its step"]
    assert columns["version"] == [4, 5]


@pytest.mark.parametrize("token", [0, 5])
def test_tokens_without_a_tokenizer_are_their_ids(token: int) -> None:
    assert Pieces(None).of(token) == f"{token} "


def test_the_source_of_the_viewer_can_be_read_in_an_afternoon() -> None:
    package = Path(areal_sdk_view.__file__).parent
    files = [*package.rglob("*.py"), *(package / "static").rglob("*.*")]
    assert sum(len(file.read_bytes().splitlines()) for file in files) < MOST_LINES
