"""`areal-sdk judge-messages RUN`: does a judge read users' next messages as the users rate?"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk import Episode
    from areal_sdk_judge.reactions import Exchange

MIN_AGREEMENT = 0.7
"""Share of verdicts that agree with the thumb: the lower end of its 95 % interval must reach it."""

_JUDGED = "reward/"
"""Begins the metrics of an episode that reward functions judged. Their verdicts are no thumbs: a judge would be compared
with itself."""


@click.command(name="judge-messages")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--base-url", required=True, help="An OpenAI-compatible endpoint.")
@click.option("--model", required=True, help="The model to ask there.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write the agreement, for the reward."
)
@click.option(
    "--good-above",
    type=float,
    default=0.5,
    show_default=True,
    help="Rewards or scores above it are thumbs up.",
)
@click.option(
    "--score",
    default="",
    help="Compare with this score of feedback.jsonl, such as helpful; default: the rewards.",
)
@click.option(
    "--min-agreement",
    type=float,
    default=MIN_AGREEMENT,
    show_default=True,
    help="What the lower end of the interval must reach.",
)
@click.option("--where", default="", help="A condition on episodes, as `inspect --where` has it.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Of a reply of the judge.",
)
@click.option("--max-concurrency", type=int, default=16, show_default=True)
@click.option("--timeout-s", type=float, default=20.0, show_default=True)
@click.option("--cache", default="", help="A file that keeps the judge's replies.")
def judge_messages(
    run: Path,
    base_url: str,
    model: str,
    output: Path | None,
    good_above: float,
    min_agreement: float,
    score: str,
    where: str,
    max_tokens: int,
    max_concurrency: int,
    timeout_s: float,
    cache: str,
) -> None:
    """Compare a judge of users' next messages with the rewards that the users posted, or with their later scores.

    RUN is a recorded run, such as `serve --record`. A thumb on a turn is compared with the verdict on the message after
    this turn, a thumb on a session with the mean of its verdicts. Exit code 1 if the judge is not to be trained on. The
    endpoint's key is read from JUDGE_API_KEY. A judge that thinks needs a larger --max-tokens.
    """
    from areal_sdk_judge.certificate import certificate_of, write_certificate
    from areal_sdk_judge.judge import Judge, JudgeOptions
    from areal_sdk_judge.reactions import reactions

    options = JudgeOptions(
        base_url=base_url,
        model=model,
        max_tokens=max_tokens,
        max_concurrency=max_concurrency,
        timeout_s=timeout_s,
        cache=cache,
    )
    thumbs_of = _scores_of(run, score) if score else _rewards
    thumbed = list(_thumbed(run, where, good_above, thumbs_of))

    async def ask() -> list[list[float | None]]:
        judge = Judge(options)
        try:
            return await asyncio.gather(*(reactions(judge, some) for some, _ in thumbed))
        finally:
            await judge.aclose()

    verdicts = [_together(found) for found in asyncio.run(ask())]
    found = certificate_of(
        [(verdict, is_up) for verdict, (_, is_up) in zip(verdicts, thumbed, strict=True)],
        base_url=base_url,
        model=model,
        min_agreement=min_agreement,
    )
    for line in found.lines():
        click.echo(line)
    if output is not None:
        write_certificate(output, found)
    if shortfall := found.shortfall:
        raise click.ClickException(f"do not train on this judge: {shortfall}")


@dataclass(frozen=True, slots=True)
class _Thumbs:
    """The thumbs of the user of a session: on the whole, or on turns."""

    whole: float | None
    by_turn: Mapping[int, float]


def _rewards(episode: "Episode") -> _Thumbs:
    if any(name.startswith(_JUDGED) for name in episode.outcome.metrics):
        return _Thumbs(None, {})
    per_turn = episode.outcome.turn_rewards
    given = {turn: reward for turn, reward in enumerate(per_turn) if reward is not None}
    return _Thumbs(None if per_turn else episode.outcome.reward, given)


def _scores_of(run: Path, name: str) -> "Callable[[Episode], _Thumbs]":
    """The thumbs that the run's feedback holds under this name."""
    try:
        from areal_sdk_traces.feedback import Feedback, read_feedback
    except ImportError:
        cure = 'pip install "areal-sdk[traces]"'
        raise click.ClickException(f"areal-sdk-traces reads feedback.jsonl: {cure}") from None
    said, nothing = read_feedback(run), Feedback()

    def thumbs(episode: "Episode") -> _Thumbs:
        found = said.get(episode.id, nothing)
        turns = {
            turn: score
            for turn, scores in found.turn_scores.items()
            if isinstance(score := scores.get(name), int | float)
        }
        whole = found.scores.get(name)
        return _Thumbs(None if turns or not isinstance(whole, int | float) else whole, turns)

    return thumbs


def _thumbed(
    run: Path, where: str, good_above: float, thumbs_of: "Callable[[Episode], _Thumbs]"
) -> Iterator[tuple[Sequence["Exchange"], bool]]:
    """The exchanges that each explicit thumb is about, and whether the thumb is up."""
    from areal_sdk.records import FollowedRun, parse_condition
    from areal_sdk_judge.reactions import exchanges_of

    condition = parse_condition(where) if where else None
    followed = FollowedRun(run)
    followed.refresh()
    for summary in followed.episodes:
        if condition is not None and not condition(summary):
            continue
        episode = followed.record(summary).episode
        exchanges, thumbs = exchanges_of(episode), thumbs_of(episode)
        if thumbs.whole is not None and exchanges:
            yield exchanges, thumbs.whole > good_above
        for exchange in exchanges:
            if (thumb := thumbs.by_turn.get(exchange.turn)) is not None:
                yield [exchange], thumb > good_above


def _together(verdicts: Sequence[float | None]) -> float | None:
    """One verdict of those on a session's messages; None if they say nothing, or as much good as bad."""
    clear = [verdict for verdict in verdicts if verdict is not None]
    mean = fmean(clear) if clear else 0.5
    return None if mean == 0.5 else float(mean > 0.5)
