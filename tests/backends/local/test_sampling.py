"""Draws follow the distribution that was asked for; logprobs are those of the policy."""

import math
from collections import Counter
from random import Random

import pytest
import torch

from areal_sdk.backends.local.sampling import SamplerRow, sample
from areal_sdk.engine import Sampling

NUM_DRAWS = 4000
VOCAB = 300  # not a multiple of the block size


def random_logits(seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def draw(logits: torch.Tensor, sampling: SamplerRow) -> Counter[int]:
    counts: Counter[int] = Counter()
    batch = logits.expand(100, -1)
    for _ in range(NUM_DRAWS // 100):
        counts.update(sample(batch, [sampling] * 100).tokens)
    return counts


def assert_follows(counts: Counter[int], probabilities: torch.Tensor) -> None:
    """Chi-square: tokens expected less than five times are one cell."""
    expected = probabilities.double() * NUM_DRAWS
    assert not any(probabilities[token] == 0 for token in counts), "an excluded token was drawn"
    common = (expected >= 5).nonzero().flatten().tolist()
    cells = [(counts[t], float(expected[t])) for t in common]
    rest = NUM_DRAWS - sum(e for _, e in cells)
    if rest > 5:
        cells.append((NUM_DRAWS - sum(c for c, _ in cells), rest))
    chi_square = sum((c - e) ** 2 / e for c, e in cells)
    degrees = max(1, len(cells) - 1)
    # Five standard deviations of the chi-square distribution: a seeded test that is not brittle.
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees) + 5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = random_logits()
    counts = draw(logits, SamplerRow(Sampling(temperature=temperature), generator=Random(1)))
    assert_follows(counts, (logits / temperature).softmax(-1))


def test_top_k_keeps_the_k_most_likely() -> None:
    logits = random_logits()
    counts = draw(logits, SamplerRow(Sampling(top_k=12), generator=Random(1)))
    kept = torch.full_like(logits, -math.inf)
    top = logits.topk(12)
    kept[top.indices] = top.values
    assert_follows(counts, kept.softmax(-1))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = random_logits()
    probabilities, order = logits.softmax(-1).sort(descending=True)
    num_kept = int((probabilities.cumsum(-1) < 0.8).sum()) + 1
    expected = torch.zeros(VOCAB)
    expected[order[:num_kept]] = probabilities[:num_kept] / probabilities[:num_kept].sum()
    counts = draw(logits, SamplerRow(Sampling(top_p=0.8), generator=Random(1)))
    assert_follows(counts, expected)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0], ids=["flat", "wide", "peaked"])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_the_tail_is_cut_where_a_sort_of_the_whole_vocabulary_would_cut_it(
    scale: float, top_p: float, min_p: float
) -> None:
    """A wide distribution keeps more tokens than are looked at before the vocabulary is sorted."""
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(2)) * scale
    probabilities, order = logits.softmax(-1).sort(descending=True)
    is_kept = probabilities.cumsum(-1) - probabilities < top_p
    is_kept &= probabilities >= min_p * probabilities[0]
    kept = torch.zeros(5000).scatter_(0, order, torch.where(is_kept, probabilities, 0.0))
    edges = kept.double().cumsum(-1)
    rows = [SamplerRow(Sampling(top_p=top_p, min_p=min_p), generator=Random(n)) for n in range(100)]
    numbers = torch.tensor([Random(n).random() for n in range(100)])
    tokens = torch.tensor(sample(logits.expand(100, -1), rows).tokens)
    assert (kept[tokens] > 0).all()
    expected = torch.searchsorted(edges, numbers * edges[-1])
    assert (tokens == expected).sum() >= 99, "one number may stand where two tokens meet"


def test_min_p_is_relative_to_the_most_likely() -> None:
    logits = random_logits()
    probabilities = logits.softmax(-1)
    expected = torch.where(probabilities >= 0.1 * probabilities.max(), probabilities, 0.0)
    counts = draw(logits, SamplerRow(Sampling(min_p=0.1), generator=Random(1)))
    assert_follows(counts, expected / expected.sum())


def test_restrictions_do_not_touch_the_logprob() -> None:
    logits = random_logits()
    rows = [
        SamplerRow(Sampling(temperature=0.7, top_k=3), generator=Random(1)),
        SamplerRow(Sampling(temperature=0.7, top_p=0.3, min_p=0.2), generator=Random(2)),
        SamplerRow(
            Sampling(
                temperature=0.7,
                presence_penalty=1.0,
                frequency_penalty=0.5,
                repetition_penalty=1.3,
                logit_bias={7: 2.0},
            ),
            prompt_tokens=frozenset({3, 4}),
            output_counts=Counter({5: 2}),
            generator=Random(3),
        ),
    ]
    sampled = sample(logits.expand(3, -1), rows)
    policy = (logits / 0.7).log_softmax(-1)
    for token, logprob in zip(sampled.tokens, sampled.logprobs, strict=True):
        assert logprob == pytest.approx(float(policy[token]), abs=1e-5)


def test_greedy_takes_the_maximum_and_reports_the_logprob_of_temperature_one() -> None:
    logits = random_logits()
    sampled = sample(logits[None], [SamplerRow(Sampling(temperature=0.0))])
    assert sampled.tokens == [int(logits.argmax())]
    assert sampled.logprobs[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-5)


def test_penalties_and_bias_shift_the_choice_as_documented() -> None:
    logits = random_logits()
    said = Counter({5: 2, 9: 1})
    shifted = logits.clone()
    shifted[5] -= 0.5 + 0.3 * 2
    shifted[9] -= 0.5 + 0.3
    shifted[11] += 3.0
    row = SamplerRow(
        Sampling(presence_penalty=0.5, frequency_penalty=0.3, logit_bias={11: 3.0}),
        output_counts=said,
        generator=Random(1),
    )
    assert_follows(draw(logits, row), shifted.softmax(-1))


def test_the_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    logits = torch.zeros(VOCAB)
    logits[3], logits[4] = 4.0, -4.0
    row = SamplerRow(
        Sampling(repetition_penalty=2.0), prompt_tokens=frozenset({3, 4}), generator=Random(1)
    )
    expected = logits.clone()
    expected[3], expected[4] = 2.0, -8.0
    assert_follows(draw(logits, row), expected.softmax(-1))


def test_a_large_bias_forces_a_token_and_its_tiny_logprob_stays_finite() -> None:
    logits = torch.zeros(VOCAB)
    logits[7] = -200.0
    row = SamplerRow(Sampling(logit_bias={7: 1000.0}), generator=Random(1))
    sampled = sample(logits[None], [row])
    assert sampled.tokens == [7]
    assert sampled.logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[7]), rel=1e-5)


def test_an_impossible_token_is_never_drawn_even_at_the_edges() -> None:
    logits = torch.full((600,), -math.inf)
    logits[[255, 511, 599]] = 0.0

    class Edge(Random):
        def __init__(self, value: float) -> None:
            super().__init__(0)
            self.value = value

        def random(self) -> float:
            return self.value

    values = [0.0, 1 / 3, 2 / 3, 1 - 2**-53, math.nextafter(1 / 3, 0), math.nextafter(2 / 3, 1)]
    rows = [SamplerRow(generator=Edge(value)) for value in values]
    tokens = sample(logits.expand(len(rows), -1), rows).tokens
    assert set(tokens) <= {255, 511, 599}
    assert tokens[0] == 255
    assert tokens[3] == 599


def test_a_seed_fixes_a_requests_draws_whoever_else_is_in_the_batch() -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3))
    alone = SamplerRow(generator=Random(42))
    together = SamplerRow(generator=Random(42))
    for step in range(8):
        others = [SamplerRow(generator=Random()) for _ in range(step)]
        batch = logits[step].expand(step + 1, -1)
        assert (
            sample(logits[step : step + 1], [alone]).tokens[0]
            == sample(batch, [*others, together]).tokens[-1]
        )


def test_top_logprobs_are_the_most_likely_tokens_of_the_policy() -> None:
    logits = random_logits()
    rows = [SamplerRow(Sampling(top_k=1), num_top_logprobs=3), SamplerRow()]
    sampled = sample(logits.expand(2, -1), rows)
    top = logits.log_softmax(-1).topk(3)
    assert list(sampled.top_logprobs[0]) == top.indices.tolist()
    assert list(sampled.top_logprobs[0].values()) == pytest.approx(top.values.tolist(), abs=1e-5)
    assert sampled.top_logprobs[1] == {}
