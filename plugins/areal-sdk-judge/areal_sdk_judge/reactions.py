"""The reward `next_message`: the user's next message says whether an answer helped, where nobody posted a reward."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator

from areal_sdk import Episode, Outcome, Turn
from areal_sdk.types import alternatives
from areal_sdk_judge.certificate import read_certificate
from areal_sdk_judge.judge import Judge, JudgeOptions
from areal_sdk_judge.rewards import judge_of

UNCLEAR = 0.5
"""The value of a judgement that the message says nothing about the answer."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer, the question before it, and the message by which the user went on."""

    turn: int
    question: str
    answer: str
    next_message: str


def exchanges_of(episode: Episode) -> list[Exchange]:
    """The answers that the user answered, in order. A turn that only called tools is none."""
    found: dict[int, Exchange] = {}
    for turn in episode.turns:
        if turn.parent is None or turn.parent in found:
            continue
        came = [one for one in turn.new_messages if one.get("role") in ("user", "tool")]
        answered = episode.turns[turn.parent]
        if came and came[0]["role"] == "user" and answered.text:
            question = _question(episode, turn.parent)
            found[turn.parent] = Exchange(turn.parent, question, answered.text, _text(came[0]))
    return [found[turn] for turn in sorted(found)]


async def reactions(judge: Judge, exchanges: Sequence[Exchange]) -> list[float | None]:
    """1 for an answer that helped, 0 for one that did not; None if the next message does not say, or no verdict can be
    read."""
    judged = await asyncio.gather(
        *(judge.reaction(one.question, one.answer, one.next_message) for one in exchanges)
    )
    return [None if one.value == UNCLEAR else one.value for one in judged]


def _certified(path: str) -> str:
    """The path of a certificate that is good enough: else a run is refused before it starts. A text, since the options of
    an isolated reward travel as JSON."""
    read_certificate(Path(path))
    return str(Path(path).absolute())


_read_once = remembered(read_certificate)
"""The certificate of a run does not change while the run judges episodes by it."""


async def next_message(
    episode: Episode,
    *,
    agreement: Annotated[str, AfterValidator(_certified)],
    base_url: str = "",
    max_tokens: int = 512,
    attempts: int = 2,
    max_retries: int = 4,
    timeout_s: float = 20.0,
    max_concurrency: int = 16,
    cache: str = "",
) -> Outcome:
    """Trains each turn whose answer the user answered with the verdict on it; abstains if no message says anything.

    `agreement` is the file that `areal-sdk judge-messages RUN --output FILE` wrote: how far this judge agrees with
    explicit thumbs. The judge is the one that was compared, at `base_url` if it has moved.
    """
    certificate = _read_once(Path(agreement))
    judge = judge_of(
        JudgeOptions(
            base_url=base_url or certificate.base_url,
            model=certificate.model,
            max_tokens=max_tokens,
            attempts=attempts,
            max_retries=max_retries,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            cache=cache,
        )
    )
    exchanges = exchanges_of(episode)
    if not exchanges:
        return Outcome.abstained("no answer was followed by a message of the user")
    verdicts = await reactions(judge, exchanges)
    by_turn = {
        exchange.turn: verdict
        for exchange, verdict in zip(exchanges, verdicts, strict=True)
        if verdict is not None
    }
    clear = [verdict for verdict in verdicts if verdict is not None]
    if not clear:
        return Outcome.abstained("no next message of the user says whether an answer helped")
    return Outcome.scored(
        fmean(clear),
        success=min(clear) == 1.0,
        turn_rewards=rewards_for(by_turn, episode.turns),
        metrics={"judged": float(len(clear)), "unclear": float(len(verdicts) - len(clear))},
    )


def rewards_for(returns: Mapping[int, float], turns: Sequence[Turn]) -> tuple[float | None, ...]:
    """The rewards of turns with these returns: a turn is trained with its reward and those that follow from it.

    With the verdicts themselves as rewards, a failed answer that the next one mended would earn as much as one that
    helped at once, and the longer it took, the more.
    """
    beside = alternatives(turns) or ((),) * len(turns)
    found: dict[int, float] = {}
    for turn in sorted(returns, reverse=True):
        following = (
            reward
            for later, reward in found.items()
            if later not in beside[turn] and turns[later].policy == turns[turn].policy
        )
        found[turn] = returns[turn] - sum(following)
    return tuple(found.get(turn) for turn in range(len(turns)))


def _question(episode: Episode, index: int) -> str:
    """The latest message of the user before a turn."""
    place: int | None = index
    while place is not None:
        turn = episode.turns[place]
        for message in reversed(turn.new_messages):
            if message.get("role") == "user":
                return _text(message)
        place = turn.parent
    return ""


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")
