"""An episode as lines for people: the conversation, then its tokens as they were trained."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from areal_sdk.telemetry import EpisodeRecord
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import Exclusion, Message

Decode = Callable[[Sequence[int]], str]

_ROLE_COLORS = {"system": "yellow", "user": "blue", "assistant": "green", "tool": "cyan"}


def episode_lines(record: EpisodeRecord, decode: Decode) -> Iterator[str]:
    """Verdict, conversation with the numbers of each turn, and every trajectory's tokens.

    Trained tokens stand in brackets with the version that sampled them: `[v3|like this]`.
    """
    episode = record.episode
    yield (
        f"episode {episode.id}  task {episode.task.id}  {record.split}  "
        f"{len(episode.turns)} turns in {episode.duration_s:.1f} s"
    )
    yield f"verdict: {_verdict(record)}"
    yield from printable(episode.outcome.trace).splitlines()
    for index, turn in enumerate(episode.turns):
        yield ""
        for message in turn.new_messages:
            yield _message(message)
        yield _message(turn.message)
        yield click.style(f"  turn {index}: {_turn_numbers(record, index)}", dim=True)
    for number, trajectory in enumerate(record.trajectories):
        yield ""
        yield (
            f"trajectory {number}: {len(trajectory.tokens)} tokens"
            f"{_after(record, trajectory)}, "
            f"{trajectory.num_trained} trainable, reward {trajectory.reward:g}"
        )
        yield "".join(_spans(trajectory, decode))


def raw_lines(record: EpisodeRecord, decode: Decode) -> Iterator[str]:
    """The tokens that the model read and sampled, turn by turn. Each sampled token has its id, logprob and version.

    If a prompt begins with the tokens of an earlier turn, only the tokens after these are shown.
    """
    episode = record.episode
    yield f"episode {episode.id}  task {episode.task.id}  {record.split}"
    for index, turn in enumerate(episode.turns):
        yield ""
        shared = f", the first {turn.num_shared} as in turn {turn.shares_with}"
        yield click.style(
            f"turn {index} read {turn.num_prompt} tokens{shared if turn.num_shared else ''}:",
            bold=True,
        )
        yield printable(decode(turn.new_tokens))
        at = "logprobs at T 1" if turn.excluded is Exclusion.GREEDY else f"T {turn.temperature:g}"
        ended = turn.finish_reason.value
        sampled = f"turn {index} sampled {len(turn.output_tokens)} tokens ({at}, {ended}):"
        yield click.style(sampled, bold=True)
        for token, logprob, version in zip(
            turn.output_tokens, turn.logprobs, turn.versions, strict=True
        ):
            text = repr(printable(decode([token])))
            yield f"{logprob:10.4f}  v{version}  {token:>7}  {click.style(text, fg='green')}"


def find_decoder(*models: Path | str) -> Decode | None:
    """Function from token ids to text, of the first of `models` whose tokenizer is on this disk; None if none is."""
    from areal_sdk.gateway.tokens.tokenizer import Tokenizer
    from areal_sdk.models import find_model

    for model in models:
        directory = find_model(str(model))
        if directory is not None and (directory / "tokenizer.json").is_file():
            tokenizer = Tokenizer.load(directory)
            every_id = frozenset(range(tokenizer.vocab_size))  # special tokens are shown as well
            return lambda ids: tokenizer.decode(ids, keep=every_id)
    return None


def as_ids(ids: Sequence[int]) -> str:
    """The ids as text, for tokens of a model whose tokenizer is not on this machine."""
    return " ".join(map(str, ids)) + " "


def _verdict(record: EpisodeRecord) -> str:
    episode, outcome = record.episode, record.episode.outcome
    parts = [outcome.kind.value if outcome.reward is None else f"reward {outcome.reward:g}"]
    if outcome.turn_rewards:
        parts.append("by turn " + ", ".join(_number(r) for r in outcome.turn_rewards))
    if outcome.success is not None:
        parts.append("success" if outcome.success else "no success")
    if outcome.error is not None:
        parts.append(outcome.error.value)
    if outcome.message:
        parts.append(outcome.message)
    if episode.truncated:
        parts.append("truncated")
    if episode.attempt:
        parts.append(f"attempt {episode.attempt}")
    if record.step is not None:
        parts.append(_trained(record.step, record.credit))
    if record.is_undone:
        parts.append("undone: a resume went on before that, and nothing of it is left in the run")
    if record.dropped:
        parts.append(f"dropped: {record.dropped}")
    parts += [f"{name} {value:g}" for name, value in outcome.metrics.items()]
    return ", ".join(parts)


def _trained(step: int, credit: Credit | None) -> str:
    """The step that trained the episode, and the advantage of the episode: how much better than expected it was."""
    if credit is None or credit.advantage is None:
        return f"trained in step {step}"
    by_turn = ", ".join("-" if v is None else f"{v:.3g}" for v in credit.by_turn)
    turns = f" (by turn {by_turn})" if len(credit.by_turn) > 1 else ""
    return f"trained in step {step} with advantage {credit.advantage:.3g}{turns}"


def _turn_numbers(record: EpisodeRecord, index: int) -> str:
    turn = record.episode.turns[index]
    parts = [
        f"{turn.num_prompt} + {len(turn.output_tokens)} tokens",
        turn.finish_reason.value,
        # The logprobs of a greedy turn are those of T = 1.
        "T 0" if turn.excluded is Exclusion.GREEDY else f"T {turn.temperature:g}",
    ]
    if turn.versions:
        low, high = min(turn.versions), max(turn.versions)
        parts.append(f"v{low}" if low == high else f"v{low}..v{high}")
    if turn.parent is not None:
        parts.append(f"after turn {turn.parent}")
    if turn.fork is not None:
        parts.append(f"forked: {turn.fork.value}")
    if turn.excluded is not None:
        parts.append(f"not trained: {turn.excluded.value}")
    return ", ".join(parts)


def _message(message: Message) -> str:
    role = str(message.get("role", "?"))
    text = message.get("content") or ""
    lines = [text if isinstance(text, str) else str(text)] if text else []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(f"-> {function.get('name')}({function.get('arguments', '')})")
    body = printable("\n".join(lines)).replace("\n", "\n  ")
    return f"{click.style(role, fg=_ROLE_COLORS.get(role), bold=True)}: {body}"


def _after(record: EpisodeRecord, trajectory: Trajectory) -> str:
    """The place in another trajectory from which `trajectory` goes on. The other one shows the tokens before it."""
    for number, other in enumerate(record.trajectories):
        if other.branch is trajectory.branch.before:
            return f" after the first {trajectory.branch.num_before} of trajectory {number}"
    return ""


def _spans(trajectory: Trajectory, decode: Decode) -> Iterator[str]:
    labels = zip(trajectory.loss_mask, trajectory.versions, strict=True)
    tokens = zip(labels, trajectory.tokens, strict=True)
    for (is_trained, version), group in groupby(tokens, key=lambda pair: pair[0]):
        text = printable(decode([token for _, token in group]))
        if is_trained:
            yield click.style(f"[v{version}|{text}]", fg="green")
        else:
            yield click.style(text, dim=True)


def printable(text: str) -> str:
    """`text` without control characters: the output of a model must not control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
