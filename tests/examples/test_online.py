"""The online example teaches whoever serves it."""

from pathlib import Path

import pytest
from openai import AsyncOpenAI

from areal_sdk.process.user_code import load_user_module
from tests.gateway.conftest import StartGateway, model_dirs, start_gateway  # noqa: F401
from tests.toolbox.gateway_requests import Watcher

EXAMPLE = Path(__file__).parents[2] / "examples" / "online" / "thumbs.py"


@pytest.mark.parametrize(("said", "liked"), [("Ice.", 1.0), ("so many words " * 9, 0.0)])
async def test_a_thumb_is_the_reward_of_the_answer(
    start_gateway: StartGateway,  # noqa: F811
    said: str,
    liked: float,
) -> None:
    gateway, _ = await start_gateway(said)
    watcher = Watcher(gateway)
    module = load_user_module(EXAMPLE)
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.admin_key) as client:
        assert await module.ask(client, "What is a glacier?") == liked
    live = await watcher.next_ended()
    assert [posted.reward for posted in live.session.rewards] == [liked]
