"""A collector that is slow, dead or unwilling costs a run nothing but the spans, and these are counted."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from otel_collector import collecting

from areal_sdk.testing import make_episode
from areal_sdk_otel import outbox
from areal_sdk_otel.observer import Otel


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "EVERY_S", 0.01)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="areal_sdk.otel"):
        yield caplog


def play(observer: Otel, *, episodes: int) -> None:
    observer.on_run_start("my-run", "runs/my-run", {"model": "tiny"})
    for number in range(episodes):
        observer.on_episode(make_episode(f"said {number}"), "")


def lines(told: pytest.LogCaptureFixture, words: str = "") -> list[str]:
    return [line for record in told.records if words in (line := record.getMessage())]


async def test_a_dead_collector_is_said_once_and_what_was_lost_is_counted(
    told: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    observer = Otel(endpoint=f"http://127.0.0.1:{port}", metrics_port=0)
    play(observer, episodes=20)
    await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert len(lines(told, "does not take the spans of this run")) == 1
    assert len(lines(told, "otel: 40 of 40 spans did not reach")) == 1  # an episode, and its call
    assert len(lines(told, "otel: 20 of 20 rewards did not reach")) == 1
    assert len(lines(told)) == 4


async def test_a_collector_that_hangs_holds_up_neither_the_run_nor_its_end(
    told: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, answers nothing
        port = silent.getsockname()[1]
        observer = Otel(endpoint=f"http://127.0.0.1:{port}", metrics_port=0, finish_s=0.1)
        observer.on_run_start("my-run", "runs/my-run", {"model": "tiny"})
        episode = make_episode("yes")
        began = time.thread_time()
        for _ in range(100):
            observer.on_episode(episode, "")
        assert time.thread_time() - began < 10.0  # CPU of the run, whatever the collector does
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert len(lines(told, "otel: 200 of 200 spans did not reach")) == 1


async def test_a_collector_that_comes_back_gets_what_waited(
    told: pytest.LogCaptureFixture,
) -> None:
    async with collecting(answers=[503, 429, 503, 504]) as collector:
        observer = Otel(endpoint=collector.url, metrics_port=0, finish_s=60.0)
        play(observer, episodes=3)
        await collector.until(lambda: len(collector.spans) == 6 and len(collector.events) == 3)
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert (len(collector.spans), len(collector.events)) == (6, 3)
    assert lines(told, "503")
    assert not lines(told, "did not reach")


async def test_a_collector_that_refuses_is_not_asked_again_for_the_same(
    told: pytest.LogCaptureFixture,
) -> None:
    async with collecting(answers=[400, 400]) as collector:
        observer = Otel(endpoint=collector.url, metrics_port=0, finish_s=60.0)
        play(observer, episodes=1)
        await collector.until(lambda: not collector.answers)
        observer.on_episode(make_episode("later"), "")
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert len(collector.named("invoke_agent")) == 1
    assert lines(told, "it answered 400 not now")
    assert lines(told, "otel: 2 of 4 spans did not reach")


async def test_what_a_collector_rejects_of_a_request_is_counted(
    told: pytest.LogCaptureFixture,
) -> None:
    reply = {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}
    async with collecting(reply=reply) as collector:
        observer = Otel(endpoint=collector.url, metrics_port=0, finish_s=60.0)
        play(observer, episodes=1)
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert lines(told, "it rejected 1 of 2: too old")
    assert lines(told, "otel: 1 of 2 spans did not reach")


async def test_the_outbox_is_bounded_and_keeps_the_newest(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 10_000)
    monkeypatch.setattr(outbox, "EVERY_S", 60.0)  # nothing leaves before the end
    async with collecting() as collector:
        observer = Otel(endpoint=collector.url, metrics_port=0, finish_s=60.0)
        play(observer, episodes=99)
        newest = replace(make_episode("yes"), id="newest")
        observer.on_episode(newest, "")
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert 2 <= len(collector.spans) < 20
    assert collector.spans[-1]["values"]["gen_ai.conversation.id"] == "newest"
    lost = 200 - len(collector.spans)
    assert lines(told, f"otel: {lost} of 200 spans did not reach")


async def test_requests_are_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_BODY_BYTES", 5_000)
    monkeypatch.setattr(outbox, "EVERY_S", 60.0)
    async with collecting() as collector:
        observer = Otel(endpoint=collector.url, metrics_port=0, finish_s=60.0)
        play(observer, episodes=20)
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert (len(collector.spans), len(collector.events)) == (40, 20)
    assert max(len(body) for _, body in collector.bodies) < 6_000


def test_the_run_directory_is_left_alone(tmp_path: Path) -> None:
    observer = Otel(endpoint="off", metrics_port=0)
    observer.on_run_start("my-run", str(tmp_path), {})
    observer.on_run_end(str(tmp_path))
    assert not list(tmp_path.iterdir())
