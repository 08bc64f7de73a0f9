"""The steps before the first request: read the model, wait for each server, compare all servers."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from areal_sdk.backends.remote.client import ServerFailedError, wait_until_ready
from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.weights.verify import Canary, mean_error, tolerance_of
from areal_sdk.engine import EngineInfo
from areal_sdk.errors import EngineError
from areal_sdk.models.families import read_config, stop_tokens

logger = logging.getLogger(__name__)


def read_model_info(directory: Path, *, max_context: int | None) -> EngineInfo:
    """The engine's information about its model, read from the model's directory."""
    config = read_config(directory)
    text = config.get("text_config") or config
    own_context = int(text["max_position_embeddings"])
    return EngineInfo(
        model=str(directory),
        max_context=min(max_context or own_context, own_context),
        vocab_size=int(text["vocab_size"]),
        stop_tokens=stop_tokens(directory),
        constrains_json=True,
    )


async def connect(
    server: Server, model: Path, limits: ServerLimits, *, start_timeout_s: float
) -> None:
    """Wait until a server samples, and ask for its properties."""
    process = server.process
    if process is None:
        await _wait_for_named(server, timeout_s=limits.connect_timeout_s)
    else:
        try:
            await wait_until_ready(
                server.client,
                timeout_s=start_timeout_s,
                is_running=lambda: process.is_running,
            )
        except ServerFailedError as exc:
            raise EngineError(
                f"{exc}; the end of {process.log_path}:\n{process.last_lines()}"
            ) from None
    server.info = await server.client.inspect(model)


async def _wait_for_named(server: Server, *, timeout_s: float) -> None:
    """Wait for a server that somebody else starts. The log says at once that the run waits."""
    try:
        await server.client.probe()
    except EngineError as exc:
        text = "waiting up to %g s for the %s server of %s: %s"
        logger.warning(text, timeout_s, server.client.kind, server.address, exc)
        await wait_until_ready(server.client, timeout_s=timeout_s)


def common_context(info: EngineInfo, servers: Sequence[Server]) -> int:
    """The context of the smallest server, since a request may have to move to any other server."""
    limits = [info.max_context]
    for server in servers:
        assert server.info is not None
        limits += [n for n in (server.info.max_context, server.info.num_kv_tokens) if n]
    return min(limits)


async def check_agreement(servers: Sequence[Server], canary: Canary, model: Path) -> None:
    """Check that all servers start with the same weights, or they would be one policy in name only."""
    answers = await asyncio.gather(
        *(m.client.score(canary.tokens, canary.candidates) for m in servers)
    )
    for server, answer in zip(servers, answers, strict=True):
        assert server.info is not None
        difference = mean_error(answer.logprobs, answers[0].logprobs)
        if difference > tolerance_of(server.info.dtype):
            raise EngineError(
                f"{server.address} and {servers[0].address} serve different weights (a canary's "
                f"logprobs differ by {difference:.3g}): start both from {model}"
            )
