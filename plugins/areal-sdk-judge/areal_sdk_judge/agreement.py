"""The agreement of a judge with people: labelled examples, and the figures of their comparison.

An unchecked judge is an unknown reward. Look at the share of unreadable verdicts, at `kappa` (agreement beyond
chance; below 0.4 is poor), and at how often it orders two answers as people do.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from areal_sdk import ConfigError
from areal_sdk_judge.judge import Judge, Judgement


@dataclass(frozen=True, slots=True)
class Example:
    """An answer and what people think of it, from 0 to 1. With `other`: how much better it is."""

    question: str
    answer: str
    label: float
    other: str | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a comparison with labels."""

    num_examples: int
    num_read: int
    """Number of verdicts that could be read. All other figures are about these verdicts."""
    same_side: float
    """Share of verdicts on the label's side of one half."""
    kappa: float
    """Agreement beyond chance: 1 is perfect, 0 is as good as guessing."""
    mean_difference: float
    same_order: float
    """Share of pairs with different labels that the judge puts in the same order; a tie counts half."""
    cost: float
    tokens: float


def read_examples(path: Path) -> list[Example]:
    """JSONL: `question`, `answer`, `label` from 0 to 1, and `other` in a row that compares two answers."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            other = row.get("other")
            example = Example(
                str(row["question"]),
                str(row["answer"]),
                float(row["label"]),
                None if other is None else str(other),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ConfigError(
                f"{path}:{number}: {exc!r}: a row is "
                '{"question": ..., "answer": ..., "label": 0 to 1}, with "other" for a comparison'
            ) from None
        if not 0.0 <= example.label <= 1.0:
            raise ConfigError(
                f"{path}:{number}: label = {example.label}: give a number from 0 to 1"
            )
        found.append(example)
    if not found:
        raise ConfigError(f"{path} has no rows")
    return found


async def check(judge: Judge, examples: Sequence[Example]) -> Agreement:
    """Ask the judge about every example; an endpoint that is down raises."""
    judgements = await asyncio.gather(*(_judge(judge, example) for example in examples))
    return agreement_of(judgements, [example.label for example in examples])


async def _judge(judge: Judge, example: Example) -> Judgement:
    if example.other is None:
        return await judge.score(example.question, example.answer)
    return await judge.compare(example.question, example.answer, example.other)


def agreement_of(judgements: Sequence[Judgement], labels: Sequence[float]) -> Agreement:
    read = [
        (judgement.value, label)
        for judgement, label in zip(judgements, labels, strict=True)
        if judgement.value is not None
    ]
    return Agreement(
        num_examples=len(labels),
        num_read=len(read),
        same_side=_mean([float(_side(value) == _side(label)) for value, label in read]),
        kappa=kappa_of([(_side(value), _side(label)) for value, label in read]),
        mean_difference=_mean([abs(value - label) for value, label in read]),
        same_order=_mean(
            [
                _order(first, second)
                for first, second in combinations(read, 2)
                if first[1] != second[1]
            ]
        ),
        cost=sum(judgement.metrics.get("judge/cost", 0.0) for judgement in judgements),
        tokens=sum(
            judgement.metrics.get(f"judge/{name}_tokens", 0.0)
            for judgement in judgements
            for name in ("prompt", "completion")
        ),
    )


def _side(value: float) -> int:
    """-1, 0 or 1: below, at, or above one half."""
    return (value > 0.5) - (value < 0.5)


def _order(first: tuple[float, float], second: tuple[float, float]) -> float:
    judged, labelled = first[0] - second[0], first[1] - second[1]
    return 0.5 if judged == 0 else float((judged > 0) == (labelled > 0))


def kappa_of(pairs: Sequence[tuple[int, int]]) -> float:
    """Cohen's kappa; NaN if both sides always give the same verdict, so that there is nothing to agree on."""
    if not pairs:
        return math.nan
    total = len(pairs)
    observed = sum(a == b for a, b in pairs) / total
    sides = {side for pair in pairs for side in pair}
    expected = sum(
        sum(a == side for a, _ in pairs) * sum(b == side for _, b in pairs) for side in sides
    ) / (total * total)
    return math.nan if expected == 1.0 else (observed - expected) / (1.0 - expected)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
