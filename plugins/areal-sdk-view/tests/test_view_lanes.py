"""The parts of a run on one clock, its CPU time and its logs."""

import itertools
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import aiohttp
import pytest
from test_view_api import get
from view_runs import NUM_TIMED, STEPS, write_timed_run

from areal_sdk.testing import RecordedRun


async def test_lanes_put_the_parts_of_a_run_on_one_clock(
    client: aiohttp.ClientSession, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timed_run(runs / "timed", monkeypatch)
    lanes = await get(client, "runs/timed/lanes", seconds="16")
    assert lanes["range"] == [pytest.approx(1000.05), 1016.0]
    assert sum(map(len, lanes["agents"])) == 4 * NUM_TIMED
    for lane in lanes["agents"]:
        assert all(a["end"] <= b["begin"] + 1e-5 for a, b in itertools.pairwise(lane))
    spent: dict[str, float] = defaultdict(float)
    for bar in lanes["bars"]:
        spent[bar["kind"]] += bar["end"] - bar["begin"]
    expected = {"wait": 0.6 * NUM_TIMED, "step": 0.3 * NUM_TIMED, "publish": 0.05 * NUM_TIMED}
    assert spent == pytest.approx({**expected, "update": 0.02 * (NUM_TIMED - 1)})
    of = {"waiting": 4 * 0.1, "answered": 4 * 0.4}
    for name, seconds in of.items():  # for 0.1 s a call waits, for 0.4 s it is answered
        assert fmean(lanes["engine"][name]) * 16 == pytest.approx(seconds * NUM_TIMED, rel=0.05)
    gate = lanes["gate"]
    assert (gate["most"], max(gate["running"]), max(gate["held"])) == (8, 4.0, 8.0)
    late = await get(client, "runs/timed/lanes", until="1004", seconds="2")
    assert {bar["step"] for bar in late["bars"]} == {2, 3, 4}
    assert sum(map(len, late["agents"])) == 2 * 4
    await get(client, "runs/timed/lanes", 400, seconds="-1")
    for until in ("nan", "inf", "1e300"):
        await get(client, "runs/timed/lanes", 400, until=until)
    await get(client, "runs/guess-1/lanes", 400, seconds="1e-9")  # the clock has 2e-7 s


async def test_lanes_without_an_episode_are_empty(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    RecordedRun(runs / "new").close()
    lanes = await get(client, "runs/new/lanes")
    assert (lanes["agents"], lanes["bars"], lanes["range"]) == ([], [], [0.0, 0.0])


async def test_the_planned_lane_begins_with_a_measured_step(
    client: aiohttp.ClientSession, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("areal_sdk_plan", reason="no areal-sdk-plan here")
    write_timed_run(runs / "timed", monkeypatch)
    window = {"since": "1003.99", "until": "1008"}
    planned = await get(client, "runs/timed/plan", **window)
    bars = planned["bars"]
    assert (bars[0]["step"], bars[0]["begin"]) == (5, pytest.approx(1004.05))
    assert [bar["kind"] for bar in bars[:3]] == ["wait", "step", "publish"]
    assert all(a["end"] == b["begin"] for a, b in itertools.pairwise(bars))
    assert planned["measured_s"] == pytest.approx(1.0)
    assert planned["predicted_s"] == pytest.approx(1.0, rel=0.25)
    for since, until in (("1e3", "1e300"), ("-inf", "1e3"), ("nan", "1e3"), ("1e3", "")):
        refused = await get(client, "runs/timed/plan", 400, since=since, until=until)
        assert "give two moments" in refused["error"]
    few = await get(client, "runs/guess-1/plan", 400, since="0", until="1e9")
    assert "a calibration needs 11" in few["error"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("rollout = 3", "is damaged"),
        ('rollout = "x"', "no [rollout]"),
        ("[rollout]\nbatch = {}", "batch"),
    ],
)
async def test_a_plan_of_damaged_settings_is_refused(
    client: aiohttp.ClientSession,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    told: str,
) -> None:
    pytest.importorskip("areal_sdk_plan", reason="no areal-sdk-plan here")
    write_timed_run(runs / "timed", monkeypatch)
    (runs / "timed/config.toml").write_text(f'model = "tiny"\n{settings}\n')
    window = {"since": "1003.99", "until": "1008"}
    refused = await get(client, "runs/timed/plan", 400, **window)
    assert told in refused["error"]


async def test_a_plan_begins_with_a_step_of_any_number(
    client: aiohttp.ClientSession, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("areal_sdk_plan", reason="no areal-sdk-plan here")
    write_timed_run(runs / "timed", monkeypatch)
    metrics = runs / "timed/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step":5,', '"step":5.5,'))
    window = {"since": "1003.99", "until": "1008"}
    bars = (await get(client, "runs/timed/plan", **window))["bars"]
    assert (bars[0]["step"], bars[0]["begin"]) == (5.5, pytest.approx(1004.05))


async def test_cpu_hours_go_on_after_a_resume(client: aiohttp.ClientSession, runs: Path) -> None:
    run = RecordedRun(runs / "resumed")
    for step, used in ((1, 2.0), (2, 5.0)):
        run.event("step", {"step": step, "train/cpu_main_s": used, "train/cpu_forward_s": 9.0})
    run.resume(2)
    run.event("step", {"step": 3, "train/cpu_main_s": 1.0, "train/cpu_trainer-0_s": 4.0})
    run.close()
    columns = (await get(client, "runs/resumed/events"))["columns"]
    assert columns["cpu_s"] == [2.0, 5.0, 10.0]
    assert (await get(client, "runs/guess-1/events"))["columns"]["cpu_s"] == [None] * STEPS


async def test_a_resumed_process_counts_from_nothing_however_much_it_used(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    run = RecordedRun(runs / "resumed")
    run.event("step", {"step": 1, "train/cpu_main_s": 2.0})
    run.resume(1)
    run.event("step", {"step": 2, "train/cpu_main_s": 6.0, "train/cpu_engine_s": 3.0})
    run.event("step", {"step": 3, "train/cpu_main_s": None, "train/cpu_engine_s": "a"})
    run.event("step", {"step": 4, "train/cpu_main_s": 7.0, "train/cpu_engine_s": 1.0})
    run.close()
    columns = (await get(client, "runs/resumed/events"))["columns"]
    assert columns["cpu_s"] == [2.0, 11.0, None, 13.0], "the engine was started again"


async def test_a_log_is_read_from_its_end(client: aiohttp.ClientSession, runs: Path) -> None:
    logs = runs / "guess-1/logs"
    (logs / "engine.log").write_text("".join(f"line {n}\n" for n in range(20_000)))
    (logs / "trainer-0.log").write_text("")
    (logs / "secret.log").symlink_to("/etc/hostname")
    last = await get(client, "runs/guess-1/logs")
    assert (last["name"], last["sizes"]["trainer-0.log"]) == ("engine.log", 0)
    assert last["text"].endswith("line 19999\n")
    before = await get(client, "runs/guess-1/logs", name="engine.log", until=str(last["since"]))
    whole = (logs / "engine.log").read_text()
    assert whole.endswith(before["text"] + last["text"])
    assert before["since"] == len(whole) - 200_000
    for name in ("secret.log", "../config.toml", "none.log"):
        await get(client, "runs/guess-1/logs", 404, name=name)
    assert (await get(client, "runs/guess-2/logs"))["text"] == ""
    (runs / "guess-2/logs").rmdir()
    (runs / "guess-2/logs").symlink_to(logs)
    elsewhere = await get(client, "runs/guess-2/logs")
    assert (elsewhere["sizes"], elsewhere["text"]) == ({}, "")
    await get(client, "runs/guess-2/logs", 404, name="engine.log")
