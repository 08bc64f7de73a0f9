"""A prompt is computed in chunks, cut wherever the step's budget ends: also after one token."""

from pathlib import Path

import pytest

from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.backends.local.sequence import Sequence
from areal_sdk.engine import GenerateRequest
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import Outcome, Reference, run

CHUNK = 256


def agrees(reference: Reference, request: GenerateRequest, outcome: Outcome, start: int) -> bool:
    expected = reference.logprobs(request.tokens, outcome.tokens)[start:]
    return outcome.logprobs[start:] == pytest.approx(expected, abs=1e-4)


def requests(*lengths: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(prompt(length, salt=length), 30, seed=length, ignore_eos=True)
        for length in lengths
    ]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_chunk_that_leaves_room_for_one_token_of_the_next_prompt(
    left: int, checkpoint: Path, reference: Reference
) -> None:
    asked = requests(20, CHUNK - left, 60)
    core = make_core(checkpoint)
    first = core.add(asked[0])
    run(core, first, max_steps=3)  # it decodes while the others' prompts are computed
    outcomes = run(core, first, *[core.add(request) for request in asked[1:]])
    for request, outcome in zip(asked[1:], outcomes[1:], strict=True):
        assert agrees(reference, request, outcome, 0)


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tokens_in_flight_are_computed_again_in_chunks_of_any_size(
    left: int, deterministic: bool, checkpoint: Path, new_weights: Path, new_reference: Reference
) -> None:
    asked = requests(CHUNK - 10 - left, 60, CHUNK - 9, 300)
    core = make_core(checkpoint, deterministic=deterministic)
    sequences = [core.add(request) for request in asked]
    outcomes = run_until_update(core, sequences, new_weights)
    for request, outcome in zip(asked, outcomes, strict=True):
        assert agrees(new_reference, request, outcome, outcome.versions.index(1))


def run_until_update(
    core: EngineCore, sequences: list[Sequence], new_weights: Path
) -> list[Outcome]:
    """New weights once the first sequence has ten tokens; all of its KV is computed again."""
    whole = [Outcome() for _ in sequences]
    while len(sequences[0].output) < 10:
        join(whole, run(core, *sequences, max_steps=1))
    core.update_weights(1, open_weights(new_weights, core.architecture))
    join(whole, run(core, *sequences))
    return whole


def join(whole: list[Outcome], more: list[Outcome]) -> None:
    for outcome, new in zip(whole, more, strict=True):
        outcome.tokens += new.tokens
        outcome.logprobs += new.logprobs
        outcome.versions += new.versions
