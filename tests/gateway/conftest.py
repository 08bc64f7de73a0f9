from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tool_calls import FORMATS
from areal_sdk.testing import ScriptedEngine
from tests.gateway.model_dirs import TEMPLATES, make_model_dir

StartGateway = Callable[..., Awaitable[tuple[Gateway, ScriptedEngine]]]


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {shape: make_model_dir(root / shape, shape) for shape in TEMPLATES}


@pytest.fixture
async def start_gateway(model_dirs: dict[str, Path]) -> AsyncIterator[StartGateway]:
    """Start a gateway over a scripted engine: `await start_gateway(script, shape="qwen3")`."""
    async with AsyncExitStack() as stack:

        async def start(
            script: Any = "ok",
            *,
            shape: str = "qwen2.5",
            max_context: int = 4096,
            engine_class: type[ScriptedEngine] = ScriptedEngine,
            tool_format: str | None = None,
            **options: Any,
        ) -> tuple[Gateway, ScriptedEngine]:
            engine = engine_class(script, model_dir=model_dirs[shape], max_context=max_context)
            named = None if tool_format is None else FORMATS[tool_format]
            renderer = Renderer.load(model_dirs[shape], tool_format=named)
            gateway = Gateway(engine, renderer=renderer, model_name="policy", **options)
            await gateway.start()
            stack.push_async_callback(gateway.aclose)
            return gateway, engine

        yield start
