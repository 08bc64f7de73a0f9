"""Drafts change how many tokens a step gives, and never which."""

import collections.abc
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any

import numpy as np
import pytest

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.drafts import Answers, Chances, Guesser
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.backends.local.sampling import SamplerRow
from areal_sdk.backends.local.scheduler import Work
from areal_sdk.backends.local.sequence import Sequence, StopRule
from areal_sdk.backends.local.speculation import Pace, Speculation
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.models import resolve_model
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import Outcome, Reference, run

PEAKED = 0.05
"""A temperature at which the random model repeats itself."""
SAMPLINGS = {
    "plain": Sampling(temperature=PEAKED),
    "penalties": Sampling(
        temperature=PEAKED,
        presence_penalty=0.02,
        frequency_penalty=0.01,
        repetition_penalty=1.02,
        logit_bias={7: 0.1},
    ),
    "truncated": Sampling(temperature=2 * PEAKED, top_k=20, top_p=0.95, min_p=0.01),
    "greedy": Sampling(temperature=0.0),
}


class EagerPace(Pace):
    """Drafts in every step, whatever they cost."""

    is_trial = is_plain = False
    least_chance = 0.1


def eager(core: EngineCore) -> EngineCore:
    """The same engine with drafts in every step."""
    core.speculation = Speculation(thread_time, EagerPace)
    return core


def tiny() -> EngineCore:
    return EngineCore(resolve_model("tiny"), LocalOptions(max_context=512, speculate=False))


def played(
    core: EngineCore,
    requests: collections.abc.Sequence[GenerateRequest],
    *,
    steps: list[int] | None = None,
) -> list[Outcome]:
    """The outcomes of the requests. `steps` gets the number of tokens of each step."""
    step = core.step

    def counted() -> Any:
        sampled = step()
        if steps is not None:
            steps.append(len(sampled))
        return sampled

    core.step = counted  # type: ignore[method-assign]
    return run(core, *[core.add(request) for request in requests])


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_are_those_of_plain_sampling(
    sampling: Sampling, checkpoint: Path, reference: Reference
) -> None:
    requests = [
        GenerateRequest(
            prompt(20 + 9 * (i // 3), salt=i // 3),
            40 + i,
            sampling,
            seed=i,
            ignore_eos=True,
            num_top_logprobs=i % 3,
            stop_tokens=(11,) if i == 4 else (),
        )
        for i in range(12)
    ]
    plain = make_core(checkpoint, speculate=False, max_slots=10)
    drafting = eager(make_core(checkpoint, max_slots=10))
    plain_steps: list[int] = []
    steps: list[int] = []
    expected = played(plain, requests, steps=plain_steps)
    outcomes = played(drafting, requests, steps=steps)
    assert len(steps) < 0.8 * len(plain_steps)
    for request, outcome, other in zip(requests, outcomes, expected, strict=True):
        assert outcome.tokens == other.tokens
        assert outcome.last is not None
        assert other.last is not None
        assert outcome.last.finish == other.last.finish
        assert outcome.last.top_logprobs.keys() == other.last.top_logprobs.keys()
        rescored = reference.logprobs(
            request.tokens, outcome.tokens, temperature=sampling.temperature or 1.0
        )
        assert outcome.logprobs == pytest.approx(rescored, abs=2e-3)


def test_rows_that_grow_and_memory_that_is_short_change_no_token(checkpoint: Path) -> None:
    bytes_per_token = 3 * 2 * 2 * 32 * 4
    options = {"kv_memory_gb": 2 * 1024 * bytes_per_token / 1e9, "max_context": 290}
    requests = [
        GenerateRequest(prompt(240), 80, SAMPLINGS["plain"], seed=i, ignore_eos=True)
        for i in range(5)
    ]
    expected = played(make_core(checkpoint, speculate=False, **options), requests)
    outcomes = played(eager(make_core(checkpoint, **options)), requests)
    assert [outcome.tokens for outcome in outcomes] == [other.tokens for other in expected]
    assert {len(outcome.tokens) for outcome in outcomes} == {50}


def test_tokens_of_one_step_have_the_version_that_sampled_them(
    checkpoint: Path, new_weights: Path, reference: Reference, new_reference: Reference
) -> None:
    core = eager(make_core(checkpoint))
    request = GenerateRequest(prompt(40), 60, SAMPLINGS["plain"], seed=1, ignore_eos=True)
    sequence = core.add(request)
    (before,) = run(core, sequence, max_steps=10)
    core.update_weights(1, open_weights(new_weights, core.architecture))
    (after,) = run(core, sequence)
    tokens = [*before.tokens, *after.tokens]
    split = len(before.tokens)
    assert split > 10
    assert {*before.versions} == {0}
    assert {*after.versions} == {1}
    old = reference.logprobs(request.tokens, tokens, temperature=PEAKED)
    new = new_reference.logprobs(request.tokens, tokens, temperature=PEAKED)
    assert before.logprobs == pytest.approx(old[:split], abs=2e-3)
    assert after.logprobs == pytest.approx(new[split:], abs=2e-3)


def test_a_stop_string_ends_an_answer_in_the_middle_of_a_draft() -> None:
    free = GenerateRequest((65, 66), 60, Sampling(temperature=0.1), seed=3, ignore_eos=True)
    (plain,) = played(tiny(), [free])
    stop = bytes(plain.tokens[30:33]).decode()
    stopped = replace(free, stop=(stop,))
    core = eager(tiny())
    outcomes = [played(core, [stopped])[0] for _ in range(2)]  # the second follows the first
    for outcome in outcomes:
        assert outcome.last is not None
        assert outcome.last.finish is not None
        assert outcome.last.finish.matched == stop
        assert outcome.tokens == plain.tokens[: len(outcome.tokens)]
        assert len(outcome.tokens) <= 33


def test_json_output_is_drafted_too() -> None:
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "null"}}},
    }
    request = GenerateRequest(tuple(b"tags"), 60, json_schema=schema, seed=3)
    plain, core = tiny(), eager(tiny())
    num_steps = []
    for _ in range(2):
        steps: list[int] = []
        (expected,), (outcome,) = played(plain, [request]), played(core, [request], steps=steps)
        assert outcome.tokens == expected.tokens
        num_steps.append(len(steps))
    assert num_steps[1] <= num_steps[0] / 2  # the second follows the first


def test_a_guess_is_what_followed_the_longest_match() -> None:
    answers, chances = Answers(), Chances()
    text = np.array([1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3], dtype=np.int32)
    guesser = Guesser(text, answers, chances)
    assert guesser.guess(least_chance=0.2, room=9) == (4, 5)
    assert guesser.guess(least_chance=0.2, room=1) == (4,)
    guesser.note([6])
    assert guesser.guess(least_chance=0.2, room=9) == ()


def test_a_sibling_follows_the_answers_before_it() -> None:
    answers, chances = Answers(), Chances()
    question = np.arange(100, 120, dtype=np.int32)
    first, second = (Guesser(question, answers, chances) for _ in range(2))
    first.note([7, 8, 9, 10])
    assert second.guess(least_chance=0.2, room=9) == (7, 8)
    second.note([7, 8])
    assert second.guess(least_chance=0.0, room=9) == (9, 10)


def test_a_match_that_is_often_right_gives_longer_drafts() -> None:
    answers, chances = Answers(), Chances()
    text = np.array([*range(30), *range(3)], dtype=np.int32)
    drafts = []
    for _ in range(20):
        guesser = Guesser(text, answers, chances)
        drafts.append(len(guesser.guess(least_chance=0.5, room=99)))
        guesser.note(range(3, 20))
    assert drafts[0] == 0
    assert drafts[-1] > 8


def test_old_answers_are_forgotten() -> None:
    answers, chances = Answers(), Chances()
    for start in range(0, 100_000, 50):
        guesser = Guesser(np.array([start], dtype=np.int32), answers, chances)
        guesser.note(range(start + 1, start + 50))
    assert len(answers) <= 2 * 16_384 + 8
    recent = Guesser(np.arange(99_950, 99_960, dtype=np.int32), answers, chances)
    assert recent.guess(least_chance=0.4, room=9) == (99_960,)
    old = Guesser(np.arange(0, 10, dtype=np.int32), answers, chances)
    assert old.guess(least_chance=0.4, room=9) == ()


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def seconds_a_token(
    *, drafted_s: float, repeats: bool, guess_s: float = 0.0, vocabulary: int = 50
) -> float:
    """Seconds for which a row waits for a token, on an engine whose plain step takes a second. `drafted_s` is the cost
    of a drafted token, `guess_s` that of looking for the drafts of a step."""
    clock = Clock()
    speculation = Speculation(clock)
    numbers = Random(0)
    phrase = [numbers.randrange(50) for _ in range(12)]
    empty = np.array([1, 2], dtype=np.int32)
    rows = [Sequence(empty, SamplerRow(), StopRule(99_999, frozenset())) for _ in range(8)]
    num_sampled = 0
    for _ in range(4000):
        for row in rows:
            row.num_computed = row.num_tokens - 1
        plain = [Work(i, row, 1) for i, row in enumerate(rows)]
        work = speculation.with_drafts(plain, row_length=99_999)
        clock.now += guess_s * (work is not plain)
        clock.now += numbers.uniform(0.9, 1.1) + drafted_s * sum(len(item.draft) for item in work)
        before = num_sampled
        for item in work:
            output = item.sequence.output
            for drafted in (*item.draft, None):
                token = phrase[len(output) % 12] if repeats else numbers.randrange(vocabulary)
                output.append(token)
                num_sampled += 1
                if token != drafted:
                    break
        speculation.note(work, num_sampled=num_sampled - before)
    return clock.now / (num_sampled / len(rows))


def test_drafts_are_made_where_they_pay() -> None:
    assert seconds_a_token(drafted_s=0.02, repeats=True) < 0.4


@pytest.mark.parametrize(
    ("drafted_s", "repeats", "guess_s"),
    [(0.02, False, 0.0), (0.12, False, 0.0), (0.2, True, 0.0), (0.12, False, 0.1)],
)
def test_drafts_cost_little_where_they_do_not_pay(
    drafted_s: float, repeats: bool, guess_s: float
) -> None:
    assert seconds_a_token(drafted_s=drafted_s, repeats=repeats, guess_s=guess_s) < 1.03


def test_text_without_repetitions_is_not_searched_for_long() -> None:
    seconds = seconds_a_token(drafted_s=0.02, repeats=False, guess_s=0.1, vocabulary=10**9)
    assert seconds < 1.03
