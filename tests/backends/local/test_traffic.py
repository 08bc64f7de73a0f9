"""Random traffic: whatever comes together, every token is that of the version it names."""

import random
from pathlib import Path

import pytest

from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.backends.local.sequence import Sequence
from areal_sdk.engine import GenerateRequest
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import Outcome, Reference, nudge

SMALL_CHUNK = 5
"""Chunks end anywhere, also after one token and in the middle of what is computed again."""


def play(
    core: EngineCore, rng: random.Random, weights: dict[int, Path]
) -> list[tuple[Sequence, Outcome]]:
    """Requests of all lengths that share beginnings, next turns, cancellations, new weights."""
    outcomes: dict[Sequence, Outcome] = {}
    cancelled: set[Sequence] = set()
    updates = sorted(rng.sample(range(10, 60), k=2))
    for step in range(80):
        if step in updates:
            version = updates.index(step) + 1
            core.update_weights(version, open_weights(weights[version], core.architecture))
        if rng.random() < 0.3:
            tokens = prompt(rng.randint(1, 60), salt=rng.randint(0, 2))
            finished = [s for s, o in outcomes.items() if o.last and o.last.finish]
            if finished and rng.random() < 0.4:  # the next turn of a conversation
                earlier = rng.choice(finished)
                tokens = (*map(int, earlier.tokens()), *tokens[: rng.randint(1, 8)])
            request = GenerateRequest(
                tokens, rng.randint(1, 20), seed=rng.randint(0, 9), ignore_eos=True
            )
            outcomes[core.add(request)] = Outcome()
        running = [s for s, o in outcomes.items() if o.last is None or not o.last.finish]
        if running and rng.random() < 0.05 and (victim := rng.choice(running)) not in cancelled:
            cancelled.add(victim)
            core.remove(victim)
        advance(core, outcomes)
    while core.has_work:
        advance(core, outcomes)
    return list(outcomes.items())


def advance(core: EngineCore, outcomes: dict[Sequence, Outcome]) -> None:
    for sampled in core.step():
        outcome = outcomes[sampled.sequence]
        outcome.tokens.append(sampled.token)
        outcome.logprobs.append(sampled.logprob)
        outcome.versions.append(sampled.version)
        outcome.last = sampled


@pytest.fixture(scope="module")
def weights(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    directory = tmp_path_factory.mktemp("weights")
    return {v: nudge(checkpoint, directory / f"v{v}.safetensors", seed=v) for v in (1, 2)}


@pytest.fixture(scope="module")
def references(checkpoint: Path, weights: dict[int, Path]) -> dict[int, Reference]:
    return {0: Reference(checkpoint), **{v: Reference(checkpoint, weights[v]) for v in weights}}


def check(
    seed: int, checkpoint: Path, weights: dict[int, Path], references: dict[int, Reference]
) -> None:
    rng = random.Random(seed)
    core = make_core(checkpoint, max_slots=rng.choice((2, 4, 8)))
    core.scheduler._prefill_chunk = SMALL_CHUNK
    num_tokens = 0
    for sequence, outcome in play(core, rng, weights):
        for version in set(outcome.versions):
            expected = references[version].logprobs(sequence.prompt.tolist(), outcome.tokens)
            for stored, right, named in zip(
                outcome.logprobs, expected, outcome.versions, strict=True
            ):
                if named == version:
                    assert stored == pytest.approx(right, abs=1e-3)
                    num_tokens += 1
    assert num_tokens > 50


@pytest.mark.parametrize("seed", range(5))
def test_every_token_is_that_of_the_version_it_names(
    seed: int, checkpoint: Path, weights: dict[int, Path], references: dict[int, Reference]
) -> None:
    check(seed, checkpoint, weights, references)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_every_token_is_that_of_the_version_it_names_many_times(
    seed: int, checkpoint: Path, weights: dict[int, Path], references: dict[int, Reference]
) -> None:
    check(seed, checkpoint, weights, references)
