"""Logits to tokens. One softmax gives both the sample and the logprob that training needs.

Shape letters: S sampled rows, V vocabulary.

JSON schemas as masks over the vocabulary, through llguidance.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.errors import UnsupportedSchemaError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_WHITESPACE = r"[ \n\t]{0,16}"
"""Pattern of white space, enough to indent. Without a bound a policy could write spaces until it is cut."""


class Grammar:
    """The tokens that one completion may continue with."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """Mask of the tokens that may come next. The end of a turn may come only when the JSON is
        whole."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Advance by `token`, which must be allowed."""
        self._matcher.consume_token(token)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Number of the leading tokens of `tokens` that may follow one after the other."""
        return self._matcher.validate_tokens(list(tokens))

    def after(self, tokens: Sequence[int]) -> "Grammar":
        """A copy of the grammar that has read `tokens`, all of which it must allow. This grammar does not change."""
        matcher = self._matcher.deep_copy()
        matcher.consume_tokens(list(tokens))
        return Grammar(matcher, self._vocab_size)


class GrammarCompiler:
    """Compiles schemas for one tokenizer. Made once: reading the tokenizer takes seconds."""

    def __init__(self, tokenizer_path: Path, *, vocab_size: int, end_tokens: Sequence[int]) -> None:
        from llguidance import LLTokenizer  # its absence is an error of requests that need it

        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(
            str(tokenizer_path), n_vocab=vocab_size, eos_token=list(end_tokens)
        )

    def compile(self, schema: Mapping[str, Any]) -> Grammar:
        """The grammar of a schema. UnsupportedSchemaError if the schema is wrong, or cannot be enforced."""
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(
                dict(schema), overrides={"whitespace_pattern": _WHITESPACE}
            )
        except ValueError as exc:
            raise UnsupportedSchemaError(str(exc)) from exc
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise UnsupportedSchemaError(matcher.get_error().partition("\n\n")[0])
        return Grammar(matcher, self._vocab_size)


_BLOCK = 256
"""Vocabulary entries summed at once: a draw searches V / 256 sums, then 256 probabilities."""


_LIKELIEST = 512
"""Number of likeliest tokens among which top-p and min-p are tried before the whole vocabulary is sorted."""


@dataclass(slots=True)
class SamplerRow:
    """One sequence's row of the logits: the request's sampling, and the state of its draws."""

    sampling: Sampling = field(default_factory=Sampling)
    num_top_logprobs: int = 0
    generator: Random = field(default_factory=Random)
    """Generator of one uniform number a token. With a seed, the draws depend on the request alone."""
    grammar: Grammar | None = None
    """Grammar of the answer: tokens that the grammar does not allow are never drawn."""
    prompt_tokens: frozenset[int] = frozenset()
    """Tokens of the prompt, kept for the repetition penalty alone."""
    output_counts: Counter[int] = field(default_factory=Counter)
    numbers: deque[float] = field(default_factory=deque)
    """Uniform numbers that were drawn ahead of their tokens."""

    @classmethod
    def of(cls, request: GenerateRequest, grammar: Grammar | None = None) -> "SamplerRow":
        sampling = request.sampling
        return cls(
            sampling,
            num_top_logprobs=request.num_top_logprobs,
            generator=Random(request.seed),
            grammar=grammar,
            prompt_tokens=frozenset(request.tokens if sampling.repetition_penalty != 1.0 else ()),
        )

    def note(self, token: int, *, is_ahead: bool = False) -> None:
        """Remember a drawn token. `is_ahead`: a row of `after` drew it, with the first of `numbers`, which is taken off."""
        if is_ahead:
            self.numbers.popleft()
        self.output_counts[token] += 1
        if self.grammar is not None:
            self.grammar.accept(token)

    def number(self) -> float:
        """The uniform number of the next token."""
        return self.numbers.popleft() if self.numbers else self.generator.random()

    def after(self, draft: Sequence[int]) -> "list[SamplerRow]":
        """A row for the next token, and one for the token after each token of `draft`, as if the draft were sampled so far.
        This row keeps the uniform numbers of all rows, since some may not be used: `note` takes off the used ones."""
        while len(self.numbers) <= len(draft):
            self.numbers.append(self.generator.random())
        rows = [replace(self, numbers=deque([n])) for n in islice(self.numbers, len(draft) + 1)]
        for i, row in enumerate(rows):
            if self.sampling.has_penalty:
                row.output_counts = self.output_counts + Counter(draft[:i])
            if self.grammar is not None:
                row.grammar = self.grammar.after(draft[:i])
        return rows

    @property
    def shifts_logits(self) -> bool:
        return bool(self.sampling.has_penalty or self.sampling.logit_bias or self.grammar)


@dataclass(frozen=True, slots=True)
class SampledRows:
    tokens: list[int]
    logprobs: list[float]
    top_logprobs: list[dict[int, float]]


@torch.inference_mode()
def sample(logits_SV: Tensor, rows: Sequence[SamplerRow]) -> SampledRows:
    """One token per row, with log softmax(logits / T) over the full vocabulary (T = 1 if greedy).

    Penalties, biases and top-p, top-k, min-p restrict the choice; they never touch the logprob.
    `logits_SV` may have more rows than `rows` (padding of the fixed-shape decode): they are ignored.
    ValueError when a row's logits hold no distribution (NaN, or +inf).
    """
    scaled_SV = logits_SV.float()
    num_padded = len(scaled_SV) - len(rows)
    numbers = [
        [row.number() for row in rows] + [0.0] * num_padded,
        [1.0 / (row.sampling.temperature or 1.0) for row in rows] + [1.0] * num_padded,
        [float(row.sampling.is_greedy) for row in rows] + [0.0] * num_padded,
    ]
    uniform_S, inverse_S, greedy_S = _sent(numbers, scaled_SV.device, torch.float64)
    if any(row.sampling.temperature not in (0.0, 1.0) for row in rows):
        scaled_SV = scaled_SV * inverse_S.float()[:, None]
    policy_SV = scaled_SV.softmax(-1)
    choice_SV = policy_SV
    if any(row.shifts_logits or row.sampling.cuts_tail for row in rows):
        choice_SV = _restricted(logits_SV, policy_SV, rows)
    tokens_S, totals_S = _draw(choice_SV, uniform_S[: len(rows)])
    if any(row.sampling.is_greedy for row in rows):
        greedy_tokens_S = choice_SV[: len(rows)].argmax(-1)
        tokens_S = torch.where(greedy_S[: len(rows)] > 0, greedy_tokens_S, tokens_S)
    logprobs_S = policy_SV[: len(rows)].gather(1, tokens_S[:, None]).squeeze(1).log()
    # One read for all: each read waits for the device. float64 holds every token and float32 exactly.
    packed = torch.stack([tokens_S.double(), logprobs_S.double(), totals_S])
    tokens, logprobs, totals, *top = torch.cat([packed, *_top(scaled_SV, rows)]).tolist()
    if not all(map(math.isfinite, totals)):
        raise ValueError("the logits are not finite")
    if -math.inf in logprobs:
        logprobs = _exact_logprobs(scaled_SV[: len(rows)], tokens_S, logprobs_S).tolist()
    return SampledRows([int(token) for token in tokens], logprobs, _top_logprobs(top, rows))


def _exact_logprobs(scaled_SV: Tensor, tokens_S: Tensor, logprobs_S: Tensor) -> Tensor:
    """Logprobs where a forced choice (logit bias) is so unlikely that its probability underflows to 0."""
    exact_S = scaled_SV.gather(1, tokens_S[:, None]).squeeze(1) - scaled_SV.logsumexp(-1)
    return torch.where(logprobs_S == -math.inf, exact_S, logprobs_S)


def _draw(probabilities_SV: Tensor, uniform_S: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens by inverse transform sampling, one uniform number a row, in two levels; and each row's sum, which is
    not finite where the logits hold no distribution.

    Much cheaper than noise on every logit (Gumbel, exponential race), and it makes a generator per
    request free. Sums are float64, so that the grid is finer than any probability that matters.
    """
    (num_rows, vocab), num_drawn = probabilities_SV.shape, len(uniform_S)
    padding = -vocab % _BLOCK
    if padding:
        probabilities_SV = torch.nn.functional.pad(probabilities_SV, (0, padding))
    blocks = probabilities_SV.view(num_rows, -1, _BLOCK)
    edges = blocks.sum(-1).double().cumsum(-1)[:num_drawn]
    target_S1 = uniform_S[:, None] * edges[:, -1:]
    block_S1 = _first_above(edges, target_S1)
    below_S1 = torch.where(block_S1 > 0, edges.gather(1, (block_S1 - 1).clamp(min=0)), 0.0)
    index = torch.arange(num_drawn, device=edges.device)
    inner = blocks[index, block_S1.squeeze(1)].double().cumsum(-1)
    # The block's sum and its cumulated sum differ in the last digits: stay inside.
    offset_S1 = torch.minimum(target_S1 - below_S1, inner[:, -1:] * (1 - 1e-12))
    tokens_S = (block_S1 * _BLOCK + _first_above(inner, offset_S1)).squeeze(1)
    return tokens_S.clamp(max=vocab - 1), edges[:, -1]  # a row of NaN ends in the padding


def _first_above(edges: Tensor, target_S1: Tensor) -> Tensor:
    """Index of the first cumulated sum beyond the target, which is never an entry of probability 0."""
    found = torch.searchsorted(edges, target_S1, right=True)
    return found.clamp(max=edges.shape[1] - 1)


def _restricted(logits_SV: Tensor, policy_SV: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """The distribution from which each row chooses; rows without restrictions keep the policy."""
    choice_SV = policy_SV.clone()
    for index, row in enumerate(rows):
        if row.shifts_logits:
            shifted_V = _shifted(logits_SV[index].to(torch.float32, copy=True), row)
            temperature = row.sampling.temperature or 1.0
            choice_SV[index] = (shifted_V / temperature).softmax(-1)
        if row.sampling.cuts_tail:
            choice_SV[index] = _without_tail(choice_SV[index], row.sampling)
    return choice_SV


def _shifted(logits_V: Tensor, row: SamplerRow) -> Tensor:
    """Apply penalties on earlier tokens (repetition: of prompt and output, others: of the output), biases, and minus
    infinity for tokens that a grammar does not allow. This is in place: the caller hands over a copy.
    """
    device, sampling = logits_V.device, row.sampling
    if sampling.repetition_penalty != 1.0:
        seen = _sent(sorted(row.prompt_tokens | row.output_counts.keys()), device)
        values = logits_V[seen]
        factor = sampling.repetition_penalty
        logits_V[seen] = torch.where(values > 0, values / factor, values * factor)
    if row.output_counts and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens, counts = _sent(list(zip(*row.output_counts.items(), strict=True)), device)
        logits_V[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        tokens = _sent(list(sampling.logit_bias), device)
        logits_V[tokens] += _sent(list(sampling.logit_bias.values()), device)
    if row.grammar is not None:
        allowed_V = torch.from_numpy(row.grammar.allowed()).to(device, non_blocking=True)
        logits_V.masked_fill_(~allowed_V, -math.inf)
    return logits_V


def _without_tail(probabilities_V: Tensor, sampling: Sampling) -> Tensor:
    """top-k, then top-p over what is left, then min-p against the most likely token."""
    sorted_V, order_V, total = _likeliest(probabilities_V, sampling)
    keep_V = torch.ones_like(sorted_V, dtype=torch.bool)
    if sampling.top_p < 1.0:
        before_V = sorted_V.cumsum(-1) - sorted_V
        keep_V &= before_V < sampling.top_p * total
    if sampling.min_p > 0.0:
        keep_V &= sorted_V >= sampling.min_p * sorted_V[0]
    keep_V[0] = True  # the most likely token is always a choice
    # A mask as an index would wait for the device.
    kept_V = torch.where(keep_V, sorted_V, 0.0)
    return torch.zeros_like(probabilities_V).scatter_(0, order_V, kept_V)


def _likeliest(probabilities_V: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
    """The highest probabilities in falling order, their tokens, and the total of which `top_p` is a share. All tokens that
    top-p and min-p keep are among them: mostly few, while a sort of the whole vocabulary costs many times more."""
    vocab = len(probabilities_V)
    if sampling.top_k > 0:
        sorted_V, order_V = probabilities_V.topk(min(sampling.top_k, vocab))
        return sorted_V, order_V, sorted_V.sum()
    total = probabilities_V.sum()
    if probabilities_V.device.type == "cpu":  # elsewhere the question would wait for the device
        sorted_V, order_V = probabilities_V.topk(min(_LIKELIEST, vocab))
        is_past_top_p = sampling.top_p < 1.0 and sorted_V.sum() >= sampling.top_p * total
        if is_past_top_p or sorted_V[-1] < sampling.min_p * sorted_V[0]:
            return sorted_V, order_V, total
    return *probabilities_V.sort(descending=True), total


def _top(scaled_SV: Tensor, rows: Sequence[SamplerRow]) -> list[Tensor]:
    """Logprobs and tokens of the likeliest tokens, as rows of numbers, if a request wants any."""
    most = min(max((row.num_top_logprobs for row in rows), default=0), scaled_SV.shape[1])
    if most == 0:
        return []
    top = scaled_SV[: len(rows)].log_softmax(-1).topk(most, dim=-1)
    return [top.values.t().double(), top.indices.t().double()]


def _top_logprobs(top: list[list[float]], rows: Sequence[SamplerRow]) -> list[dict[int, float]]:
    most = len(top) // 2
    return [
        {int(top[most + i][s]): top[i][s] for i in range(min(row.num_top_logprobs, most))}
        for s, row in enumerate(rows)
    ]


def _sent(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)
