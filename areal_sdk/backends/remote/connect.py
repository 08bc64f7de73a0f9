"""What happens before the first request: wait for each server, probe it, compare them all."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from areal_sdk.backends.remote.pool import Member
from areal_sdk.backends.remote.verify import Canary, mean_error, tolerance_of
from areal_sdk.backends.sglang.client import ServerFault, wait_until_ready
from areal_sdk.backends.sglang.options import SGLangOptions
from areal_sdk.backends.sglang.probe import probe_server
from areal_sdk.engine import EngineInfo
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)


async def connect(member: Member, model: Path, options: SGLangOptions) -> None:
    """Wait until a server samples, and learn what it is."""
    process = member.process
    if process is None:
        await _wait_for_named(member, timeout_s=options.connect_timeout_s)
    else:
        try:
            await wait_until_ready(
                member.client,
                timeout_s=options.supervision.start_timeout_s,
                is_running=lambda: process.is_running,
            )
        except ServerFault as exc:
            raise EngineError(
                f"{exc}; the end of {process.log_path}:\n{process.last_lines()}"
            ) from None
    member.info = await probe_server(member.client, model=model)


async def _wait_for_named(member: Member, *, timeout_s: float) -> None:
    """Somebody else starts it, perhaps just now; who waits for it is told so at once."""
    try:
        await member.client.probe()
    except EngineError as exc:
        text = "waiting up to %g s for the SGLang server of %s: %s"
        logger.warning(text, timeout_s, member.address, exc)
        await wait_until_ready(member.client, timeout_s=timeout_s)


def common_context(info: EngineInfo, members: Sequence[Member]) -> int:
    """A request must fit every server, or it could not move."""
    limits = [info.max_context]
    for member in members:
        assert member.info is not None
        limits += [n for n in (member.info.max_context, member.info.num_kv_tokens) if n]
    return min(limits)


async def check_agreement(members: Sequence[Member], canary: Canary, model: Path) -> None:
    """Servers that start with different weights would be one policy in name only."""
    answers = await asyncio.gather(
        *(m.client.next_token_logprobs(canary.tokens, canary.candidates) for m in members)
    )
    for member, (_, scores) in zip(members, answers, strict=True):
        assert member.info is not None
        difference = mean_error(scores, answers[0][1])
        if difference > tolerance_of(member.info.dtype):
            raise EngineError(
                f"{member.address} and {members[0].address} serve different weights (a canary's "
                f"logprobs differ by {difference:.3g}): start both from {model}"
            )
