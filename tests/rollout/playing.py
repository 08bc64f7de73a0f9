"""One episode of an agent against a real gateway over a scripted engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from areal_sdk.agent import EpisodeContext
from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Episode, Task

PLAN = EpisodeRequest("task.0.0", Task("task", {"question": "2+2?", "answer": "4"}))


@asynccontextmanager
async def serving(
    agent: Any, engine: ScriptedEngine, model_dir: Path, **options: Any
) -> AsyncIterator[EpisodeRunner]:
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()
    options.setdefault("retry_delay_s", 0.001)
    try:
        async with EpisodeRunner(agent, gateway=gateway, **options) as runner:
            yield runner
        assert len(gateway.sessions) == 0, "a session was left open"
    finally:
        await gateway.aclose()


async def play(agent: Any, script: Any, model_dir: Path, **options: Any) -> Episode:
    engine = ScriptedEngine(script, model_dir=model_dir)
    async with serving(agent, engine, model_dir, **options) as runner:
        return await runner.run(PLAN)


def client(context: EpisodeContext, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=context.base_url,
        api_key=context.api_key,
        http_client=context.http_client,
        **options,
    )


async def ask(context: EpisodeContext, text: str = "2+2?", **options: Any) -> str:
    completion = await client(context, **options).chat.completions.create(
        model=context.model, messages=[{"role": "user", "content": text}]
    )
    return completion.choices[0].message.content or ""
