"""Continuous batching, prefix reuse and limits, on the core without its process."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from areal_sdk.backends.local.core import EngineCore
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.errors import EngineError
from areal_sdk.types import FinishReason
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import Reference, run


def count_tokens(core: EngineCore) -> list[int]:
    """The number of tokens of every forward from now on."""
    counts: list[int] = []
    plan = core.scheduler.plan

    def counted() -> object:
        work = plan()
        counts.append(sum(item.num_new for item in work))
        return work

    core.scheduler.plan = counted  # type: ignore[method-assign, assignment]
    return counts


def test_requests_of_all_lengths_together_equal_each_alone(
    checkpoint: Path, reference: Reference
) -> None:
    requests = [
        GenerateRequest(
            prompt(length, salt=length),
            new,
            sampling=Sampling(temperature=t),
            seed=length,
            ignore_eos=True,
        )
        for length, new, t in [
            (1, 40, 1.0),
            (3, 5, 0.0),
            (80, 30, 1.3),
            (500, 12, 1.0),
            (81, 60, 0.5),
        ]
    ] * 2
    core = make_core(checkpoint, max_slots=4)
    outcomes = run(core, *[core.add(request) for request in requests])

    for request, outcome in zip(requests, outcomes, strict=True):
        expected = reference.logprobs(
            request.tokens, outcome.tokens, temperature=request.sampling.temperature or 1.0
        )
        assert outcome.logprobs == pytest.approx(expected, abs=1e-4)
        alone = make_core(checkpoint)
        assert run(alone, alone.add(request))[0].tokens == outcome.tokens


def test_greedy_tokens_are_those_of_the_reference(checkpoint: Path, reference: Reference) -> None:
    core = make_core(checkpoint)
    request = GenerateRequest(prompt(20), 15, Sampling(temperature=0.0), ignore_eos=True)
    (outcome,) = run(core, core.add(request))
    for i, token in enumerate(outcome.tokens):
        logits = reference.logits([*request.tokens, *outcome.tokens[:i]])[-1]
        assert logits[token] >= logits.max() - 1e-4


def test_a_next_turn_computes_only_what_is_new(checkpoint: Path, reference: Reference) -> None:
    core = make_core(checkpoint)
    first = GenerateRequest(prompt(50), 20, seed=1, ignore_eos=True, session="s")
    (turn,) = run(core, core.add(first))
    tool_result = prompt(9, salt=5)
    second = GenerateRequest(
        (*first.tokens, *turn.tokens, *tool_result), 20, seed=2, ignore_eos=True, session="s"
    )
    counts = count_tokens(core)
    sequence = core.add(second)
    (outcome,) = run(core, sequence)

    # The last sampled token was never fed back, so it is new too.
    assert counts[0] == len(tool_result) + 1
    assert sequence.num_cached == len(second.tokens) - counts[0]
    expected = reference.logprobs(second.tokens, outcome.tokens)
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_groups_shared_prompt_is_computed_once(checkpoint: Path, reference: Reference) -> None:
    core = make_core(checkpoint)
    counts = count_tokens(core)
    shared = prompt(120)
    requests = [GenerateRequest(shared, 8, seed=i, ignore_eos=True) for i in range(8)]
    outcomes = run(core, *[core.add(request) for request in requests])

    # 120 for the first, then one prompt token for each sibling, then one a token sampled.
    assert sum(counts) <= 120 + 7 + 8 * 8
    for outcome in outcomes:
        expected = reference.logprobs(shared, outcome.tokens)
        assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_siblings_differ_and_a_seed_repeats(checkpoint: Path) -> None:
    def sampled(*seeds: int | None) -> list[tuple[int, ...]]:
        core = make_core(checkpoint)
        requests = [GenerateRequest(prompt(20), 12, seed=s, ignore_eos=True) for s in seeds]
        return [tuple(o.tokens) for o in run(core, *(core.add(r) for r in requests))]

    assert len(set(sampled(0, 1, 2, 3))) == 4
    assert len({*sampled(None, None), *sampled(None, None)}) == 4
    assert sampled(7, 8)[1] == sampled(8)[0]


def test_prompts_that_share_a_beginning_share_its_computation(
    checkpoint: Path, reference: Reference
) -> None:
    core = make_core(checkpoint)
    counts = count_tokens(core)
    system = prompt(100)
    requests = [
        GenerateRequest((*system, *prompt(40, salt=i)), 6, seed=i, ignore_eos=True)
        for i in (1, 1, 2, 2)
    ]
    outcomes = run(core, *[core.add(request) for request in requests])

    assert sum(counts) <= 140 + 40 + 2 + 4 * 6
    for request, outcome in zip(requests, outcomes, strict=True):
        expected = reference.logprobs(request.tokens, outcome.tokens)
        assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_long_prompt_does_not_stop_the_others(checkpoint: Path) -> None:
    core = make_core(checkpoint)
    short = core.add(GenerateRequest(prompt(4), 200, seed=1, ignore_eos=True))
    run(core, short, max_steps=3)
    before = len(short.output)
    core.add(GenerateRequest(prompt(900, salt=3), 1, seed=2, ignore_eos=True))
    run(core, short, max_steps=3)  # the long prompt needs four steps
    assert len(short.output) == before + 3


def test_more_requests_than_memory_wait_or_are_preempted_and_all_finish(
    checkpoint: Path, reference: Reference
) -> None:
    bytes_per_token = 3 * 2 * 2 * 32 * 4
    # Half is for running rows: room for two rows of 1024 tokens, or eight of 256.
    core = make_core(checkpoint, kv_memory_gb=2 * 2048 * bytes_per_token / 1e9)
    requests = [
        GenerateRequest(prompt(240, salt=i), 40, seed=i, ignore_eos=True) for i in range(6)
    ] + [GenerateRequest(prompt(700, salt=9), 40, seed=9, ignore_eos=True)]
    outcomes = run(core, *[core.add(request) for request in requests])
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.last is not None
        assert outcome.last.finish is not None
        assert outcome.last.finish.reason is FinishReason.LENGTH
        expected = reference.logprobs(request.tokens, outcome.tokens)
        assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_memory_for_less_than_one_request_is_refused(checkpoint: Path) -> None:
    with pytest.raises(EngineError, match="lower max_context or raise kv_memory_gb"):
        make_core(checkpoint, kv_memory_gb=0.0001)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "float16"}, "bfloat16"),
        ({"dtype": "int8"}, "int8"),
        ({"device": "tpu"}, "tpu"),
        ({"max_context": 5000}, "1024"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: dict[str, object], named: str, checkpoint: Path
) -> None:
    with pytest.raises((EngineError, ValidationError), match=named):
        make_core(checkpoint, **{"device": "cpu", **options})


def test_the_context_ends_a_request(checkpoint: Path) -> None:
    core = make_core(checkpoint, max_context=64)
    (outcome,) = run(core, core.add(GenerateRequest(prompt(60), 50, seed=1, ignore_eos=True)))
    assert len(outcome.tokens) == 4
    assert outcome.last is not None
    assert outcome.last.finish is not None
    assert outcome.last.finish.reason is FinishReason.LENGTH


def test_a_stop_token_ends_a_request_and_is_returned(checkpoint: Path) -> None:
    core = make_core(checkpoint)
    free = GenerateRequest(prompt(20), 30, seed=4, ignore_eos=True)
    (outcome,) = run(core, core.add(free))
    stop = outcome.tokens[10]
    stopped = GenerateRequest(prompt(20), 30, seed=4, ignore_eos=True, stop_tokens=(stop,))
    (again,) = run(core, core.add(stopped))
    assert again.tokens == outcome.tokens[: outcome.tokens.index(stop) + 1]
    assert again.last is not None
    assert again.last.finish is not None
    assert again.last.finish.matched == stop


def test_removing_a_request_leaves_the_others_as_they_were(
    checkpoint: Path, reference: Reference
) -> None:
    core = make_core(checkpoint)
    requests = [
        GenerateRequest(prompt(30 + i, salt=i), 30, seed=i, ignore_eos=True) for i in range(4)
    ]
    sequences = [core.add(request) for request in requests]
    run(core, *sequences, max_steps=10)
    kept = {1: sequences[1], 3: sequences[3]}
    heads = {i: list(s.output) for i, s in kept.items()}
    core.remove(sequences[0])
    core.remove(sequences[2])
    assert core.scheduler.running == [sequences[3], sequences[1]]
    outcomes = run(core, *kept.values())
    for (i, _), outcome in zip(kept.items(), outcomes, strict=True):
        expected = reference.logprobs(requests[i].tokens, [*heads[i], *outcome.tokens])
        assert outcome.logprobs == pytest.approx(expected[len(heads[i]) :], abs=1e-4)
