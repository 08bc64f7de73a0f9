"""Prometheus reads a run's numbers while it goes on, and the board asks for numbers that a run has."""

import asyncio
import json
import logging
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from otel_collector import collecting

from areal_sdk import Outcome, WeightUpdate
from areal_sdk.testing import make_episode
from areal_sdk.types import ErrorKind
from areal_sdk_otel.numbers import FAMILIES
from areal_sdk_otel.observer import Otel

TIMEOUT = aiohttp.ClientTimeout(total=60)


def start(capfd: pytest.CaptureFixture[str], **options: Any) -> tuple[Otel, str]:
    """The observer of a run that goes on, and the address that it prints."""
    observer = Otel(**{"endpoint": "off", "metrics_port": 0, **options})
    observer.on_run_start('my "run"', "runs/my-run", {"model": "tiny"})
    said = re.fullmatch(r"metrics: (http://127\.0\.0\.1:\d+/metrics)\n", capfd.readouterr().err)
    assert said
    return observer, said[1]


async def read(address: str) -> dict[str, str]:
    """Values by metric and labels."""
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT) as session,
        session.get(address) as response,
    ):
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = (await response.text()).splitlines()
    run = r'run="my \"run\""'
    rows = [line for line in lines if not line.startswith("#")]
    assert all(run in row for row in rows)
    return dict(row.replace(f"{run},", "").replace(f"{{{run}}}", "").rsplit(" ", 1) for row in rows)


async def test_the_numbers_of_a_run_are_served_while_it_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    observer, address = start(capfd)
    assert await read(address) == {}
    episode = replace(make_episode("yes"), outcome=Outcome.scored(0.25), duration_s=2.0)
    observer.on_episode(episode, "")
    observer.on_episode(episode, "stale")
    failed = Outcome.failed(ErrorKind.AGENT, "KeyError")
    observer.on_episode(replace(episode, outcome=failed), "agent_error")
    observer.on_eval_episode("after", "eval", episode)
    observer.on_step(3, {"batch/reward": 0.5, "train/loss": float("nan")})
    observer.on_evaluation("after", "eval", 3, {"success": 0.75})
    observer.on_weights(WeightUpdate(version=4, path=None))
    values = await read(address)
    sampled = len(episode.turns[0].output_tokens)
    assert values["areal_sdk_step"] == "3.0"
    assert values["areal_sdk_weights_version"] == "4.0"
    assert values['areal_sdk_metric{name="batch/reward"}'] == "0.5"
    assert values['areal_sdk_metric{name="train/loss"}'] == "NaN"
    assert values['areal_sdk_evaluation{split="eval",name="success"}'] == "0.75"
    ended = 'areal_sdk_episodes_total{split="train",outcome="%s",dropped="%s"}'
    assert values[ended % ("reward", "")] == values[ended % ("reward", "stale")] == "1.0"
    assert values[ended % ("agent", "agent_error")] == "1.0"
    assert values['areal_sdk_episode_seconds_total{split="train"}'] == "6.0"
    assert values['areal_sdk_reward_sum{split="train"}'] == "0.5"
    assert values['areal_sdk_rewards_total{split="train"}'] == "2.0"
    assert values['areal_sdk_tokens_total{split="eval",kind="sampled"}'] == str(float(sampled))
    observer.on_run_end("runs/my-run")
    with pytest.raises(aiohttp.ClientConnectionError):
        await read(address)


async def test_a_metric_that_a_later_step_lacks_is_gone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    observer, address = start(capfd)
    observer.on_step(1, {"train/loss": 0.5, "batch/reward": 0.0})
    observer.on_step(2, {"batch/reward": 0.5})
    assert set(await read(address)) == {"areal_sdk_step", 'areal_sdk_metric{name="batch/reward"}'}
    observer.on_run_end("runs/my-run")


def test_a_port_that_is_taken_is_said_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        observer = Otel(endpoint="off", metrics_port=taken.getsockname()[1])
        with caplog.at_level(logging.WARNING, logger="areal_sdk.otel"):
            observer.on_run_start("my-run", "runs/my-run", {})
        observer.on_step(1, {"batch/reward": 0.5})
        observer.on_run_end("runs/my-run")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "set observer.otel.metrics_port, 0 for a free one" in said


def read_board(*name: str) -> tuple[dict[str, Any], set[str]]:
    """A board as the command prints it, and the names that its queries ask for."""
    command = [sys.executable, "-m", "areal_sdk_otel", *name]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    board: dict[str, Any] = json.loads(printed)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return board, {found for expr in asked for found in re.findall(r"areal_sdk_\w+", expr)}


def test_every_family_has_a_place_on_the_board_and_the_board_asks_for_no_other() -> None:
    _, named = read_board()
    assert named == {family.name for family in FAMILIES}


@pytest.mark.parametrize("name", [(), ("serve",)])
def test_no_panel_of_a_board_covers_another(name: tuple[str, ...]) -> None:
    board, _ = read_board(*name)
    places = [
        (x, y)
        for panel in board["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places)), "panels overlap"
    assert max(x for x, _ in places) < 24


ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / "tests/loop/scripted.py").is_file(), reason="needs the repository")
async def test_the_board_of_a_server_asks_for_all_that_a_server_tells_and_for_no_other() -> None:
    """The real command with the scripted engine."""
    _, named = read_board("serve")
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_sdk", "serve", "--model", "tiny", "--port", "0"),
        *("--plugin", ROOT / "tests/loop/scripted.py", "--set", "engine.name=scripted"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(120):
            while not (
                told := re.search(rb"serving tiny at (\S+)/v1", await server.stdout.readline())
            ):
                assert not server.stdout.at_eof()
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(f"{told[1].decode()}/metrics") as response,
        ):
            types = re.findall(r"# TYPE (\S+) (\S+)", await response.text())
    finally:
        server.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            await server.communicate()
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    assert named == {f"{name}{part}" for name, kind in types for part in parts.get(kind, ("",))}


@pytest.mark.skipif(not (ROOT / "tests/loop/scripted.py").is_file(), reason="needs the repository")
async def test_a_run_sends_its_episodes_and_ends_as_it_would_without(tmp_path: Path) -> None:
    """The real command with the scripted engine and trainer."""
    settings = {
        "model": "tiny",
        "run.steps": 2,
        "run.dir": tmp_path,
        "run.name": "run",
        "run.checkpoint_every": 0,
        "engine.name": "scripted",
        "trainer.name": "scripted",
        "rollout.batch": 16,
        "rollout.group_size": 4,
        "rollout.max_inflight": 16,
        "eval.before": "false",
        "eval.after": "false",
        "observer.otel.metrics_port": 0,
        "observer.otel.finish_s": 60.0,
    }
    async with collecting() as collector:
        settings["observer.otel.endpoint"] = collector.url
        options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        loop = ROOT / "tests/loop"
        run = await finished(
            "train", loop / "vowels.py", "--plugin", loop / "scripted.py", *options
        )
        assert "metrics: http://127.0.0.1:" in run
        assert "otel:" not in run, run
    roots, calls = collector.named("invoke_agent"), collector.named("chat")
    assert len(roots) >= 32
    assert {root["name"] for root in roots} == {"invoke_agent vowels.py"}
    assert len(calls) >= len(roots)
    by_trace = {root["traceId"]: root["spanId"] for root in roots}
    assert all(by_trace[call["traceId"]] == call["parentSpanId"] for call in calls)
    rewards = {event["traceId"] for event in collector.events}
    assert rewards == set(by_trace)


async def finished(*arguments: object) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_sdk", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(240):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()
