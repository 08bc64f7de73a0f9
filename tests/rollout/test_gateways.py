"""Gateway processes as the main process keeps them: they hear the news, and none is left behind."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.process import ProcessSpec
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.gateways.pool import GatewayPool, kept_running
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import WeightUpdate
from tests.toolbox.processes import is_alive
from tests.toolbox.waiting import until


class Kept:
    """A pool of one gateway process, and the lines that its processes wrote."""

    def __init__(self, model_dir: Path, directory: Path) -> None:
        self.engine = ScriptedEngine("four", model_dir=model_dir)
        self.said: list[str] = []
        self.news_at_start: list[Mapping[str, Any]] = []
        """News that come while the next process starts."""
        self.num_specs = 0
        self._background = BackgroundTasks()
        self._args = {"model_dir": str(model_dir), "notes": str(directory / "notes")}
        self.pool = GatewayPool(
            self._make_spec,
            size=1,
            engine=self.engine,
            base_url="",
            admin_key="",
            log_dir=directory,
            forget=lambda place: None,
            say=self.said.append,
        )

    def _make_spec(self, place: int, state: Mapping[str, Any]) -> ProcessSpec:
        self.num_specs += 1
        for news in self.news_at_start:
            self._background.begin(self.pool.tell(news), name="news")
        self.news_at_start = []
        return ProcessSpec(f"gateway-{place}", "tests.rollout.gateway_entry:main", self._args)

    @property
    def notes(self) -> list[str]:
        path = Path(str(self._args["notes"]))
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@asynccontextmanager
async def kept(model_dir: Path, directory: Path) -> AsyncIterator[Kept]:
    one = Kept(model_dir, directory)
    async with kept_running(one.pool, {"number": 1}):
        yield one


async def test_a_process_that_stood_still_hears_the_news_when_it_goes_on(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.process.pools.broadcast.CONFIRM_WITHIN_S", 0.1)
    async with kept(model_dir, tmp_path) as one:
        (pid,) = one.pool.pids.values()
        os.kill(pid, signal.SIGSTOP)
        try:
            await one.pool.tell({"number": 2})
            await one.pool.tell({"number": 3})
            await one.engine.update_weights(WeightUpdate(7, None))
            await until(
                lambda: one.pool._version.latest == 7 and not one.pool._version.is_confirmed
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: {"heard 3", "version 7"} <= set(one.notes))
        (warning,) = one.said
        assert "gateway-0 has not heard news of the engine (no answer within 0.1 s)" in warning
        assert one.pool.num_lost == 0


async def test_a_process_that_refuses_the_first_news_is_told_again_and_is_not_left_behind(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.process.pools.broadcast.SEND_AGAIN_S", 0.0)
    async with kept(model_dir, tmp_path) as one:
        (first,) = one.pool.pids.values()
        one.news_at_start = [{"number": 2, "refusal": "the engine is away"}]
        os.kill(first, signal.SIGKILL)
        await until(lambda: "heard 2" in one.notes)
        (second,) = one.pool.pids.values()
        assert one.num_specs == 2, "one process took the place of the one that was killed"
        assert "the engine is away" in one.said[-1]
    assert not is_alive(first)
    assert not is_alive(second)
