"""A JSON schema lets nothing else be sampled, and logprobs stay those of the policy."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
import torch

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.sampling import GrammarCompiler, SamplerRow, sample
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.errors import UnsupportedSchemaError
from areal_sdk.models import resolve_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "boolean"}},
    },
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return resolve_model("tiny")


@pytest.fixture(scope="module")
def compiler(model_dir: Path) -> GrammarCompiler:
    return GrammarCompiler(model_dir / "tokenizer.json", vocab_size=263, end_tokens=(258,))


@pytest.mark.parametrize("temperature", [1.0, 0.0, 1.6])
def test_every_completion_is_json_of_the_schema(model_dir: Path, temperature: float) -> None:
    core = EngineCore(model_dir, LocalOptions(max_context=512))
    sequences = [
        core.add(
            GenerateRequest(
                (65, 66 + seed),
                200,
                sampling=Sampling(temperature=temperature),
                json_schema=SCHEMA if seed % 4 else None,
                seed=seed,
            )
        )
        for seed in range(8)
    ]
    while core.has_work:
        core.step()
    finished = 0
    for seed, sequence in enumerate(sequences):
        if seed % 4 and sequence.output[-1] == 258:  # the rest was cut at the length
            value = orjson.loads(bytes(sequence.output[:-1]))
            assert isinstance(value["ok"], bool)
            assert value.keys() <= {"ok", "tags"}
            finished += 1
    assert finished


def test_draws_follow_the_masked_softmax_and_logprobs_the_policy(compiler: GrammarCompiler) -> None:
    logits = torch.randn(263, generator=torch.Generator().manual_seed(0))
    policy = logits.log_softmax(-1)
    random = Random(0)
    counts: Counter[int] = Counter()
    for _ in range(50):
        rows = [SamplerRow(generator=random, grammar=compiler.compile({"type": "boolean"}))] * 20
        sampled = sample(logits.expand(20, -1), rows)
        counts.update(sampled.tokens)
        for token, logprob in zip(sampled.tokens, sampled.logprobs, strict=True):
            assert logprob == pytest.approx(policy[token].item(), abs=1e-5)
    assert counts.keys() == {ord("t"), ord("f")}
    expected = torch.stack([logits[ord("t")], logits[ord("f")]]).softmax(-1)[0].item()
    assert counts[ord("t")] / 1000 == pytest.approx(expected, abs=0.08)


def test_a_likely_token_that_is_not_allowed_is_never_drawn(compiler: GrammarCompiler) -> None:
    logits = torch.zeros(263)
    logits[ord("x")] = 300.0  # everything else underflows in the policy's own softmax
    row = SamplerRow(generator=Random(0), grammar=compiler.compile({"type": "boolean"}))
    sampled = sample(logits[None], [row])
    assert sampled.tokens[0] in (ord("t"), ord("f"))
    assert sampled.logprobs[0] == pytest.approx(-300.0, abs=1e-3)


def test_space_between_tokens_has_an_end(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(SCHEMA)
    grammar.accept(ord("{"))
    for _ in range(16):
        assert grammar.allowed()[ord(" ")]
        grammar.accept(ord(" "))
    assert not grammar.allowed()[ord(" ")]
    assert grammar.allowed()[ord('"')]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "nonsense"}, "Invalid type"),
        ({"not": {}}, "Unimplemented keys"),
        ({"$ref": "#/nowhere"}, "does not exist"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(
    compiler: GrammarCompiler, schema: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedSchemaError, match=why):
        compiler.compile(schema)
