"""`areal-sdk serve --learn` is stopped: no session is lost, and the books are those of the end."""

import asyncio
import signal
from pathlib import Path

import pytest

from areal_sdk.telemetry.ledger import DropReason
from tests.loop.learning_server import Caller, serving
from tests.loop.runs import DEADLINE_S, SCRIPTED, finish, inspect, run_dir, told

NUM_OPEN = 3


@pytest.mark.parametrize(
    ("hold", "number", "arguments"),
    [
        ("", signal.SIGINT, ()),
        ("", signal.SIGTERM, ("--processes", "2")),
        ("step", signal.SIGINT, ()),
        ("publish", signal.SIGTERM, ()),
    ],
    ids=["between steps", "processes", "in a step", "after a step"],
)
async def test_sessions_without_a_reward_are_written_and_the_books_have_nobody_running(
    tmp_path: Path, hold: str, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    held = tmp_path / f"hold-{hold}"
    if hold:
        held.touch()
    settings = {"rollout__batch": 2, "serve__idle_s": 600}
    with serving(tmp_path, *SCRIPTED, *arguments, **settings) as (server, url, key):
        assert server.stdout is not None
        for name in ("open-one", *[""] * NUM_OPEN):
            async with Caller(url, f"{key}/{name}" if name else key) as caller:
                await caller.ask(0)
        if hold:
            async with Caller(url, key) as caller:
                await caller.call(1)
                await caller.call(2)
            async with asyncio.timeout(DEADLINE_S):
                while not (tmp_path / f"in-{hold}").exists():  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
        server.send_signal(number)
        if hold == "step":
            await asyncio.to_thread(told, server.stdout, "(stopping: waits for step)")
        held.unlink(missing_ok=True)
        await asyncio.to_thread(finish, server)
    run = run_dir(tmp_path)
    written, num_trained = list(run.list_episodes()), 2 if hold else 0
    assert len(written) == 1 + NUM_OPEN + num_trained
    # A process may tell of a session when learning has ended.
    num_late = [episode.split for episode in written].count("live")
    assert not num_late or arguments
    num_cancelled = 1 + NUM_OPEN - num_late
    assert [episode.dropped for episode in written].count(DropReason.CANCELLED) == num_cancelled
    assert run.read_ledger() == {
        "started": num_cancelled + num_trained,
        "running": 0,
        "buffered": 0,
        "trained": num_trained,
        "dropped": {"cancelled": num_cancelled} if num_cancelled else {},
    }
    assert run.find_episode("open-one").episode.turns[0].output_tokens
    assert "admin/open-one" in inspect(str(run.path))
