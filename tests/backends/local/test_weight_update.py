"""New weights while requests are in flight."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.backends.local.sequence import Sequence
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import Outcome, Reference, make_checkpoint, nudge, run


def update(core: EngineCore, version: int, path: Path | None, *, checksum: str = "") -> None:
    weights = open_weights(path, core.architecture, checksum=checksum) if path else None
    core.update_weights(version, weights)


def swap_in_flight(
    core: EngineCore, requests: list[GenerateRequest], path: Path | None, *, after: int
) -> tuple[list[Sequence], list[Outcome]]:
    sequences = [core.add(request) for request in requests]
    first = run(core, *sequences, max_steps=after)
    update(core, 1, path)
    second = run(core, *sequences)
    for a, b in zip(first, second, strict=True):
        a.tokens += b.tokens
        a.logprobs += b.logprobs
        a.versions += b.versions
    return sequences, first


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_tokens_after_the_swap_are_those_of_the_new_weights(family: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", family)
    new_weights = nudge(checkpoint, tmp_path / "v1.safetensors")
    reference, new_reference = Reference(checkpoint), Reference(checkpoint, new_weights)
    requests = [
        GenerateRequest(prompt(40 + 5 * i, salt=i // 2), 30, seed=i, ignore_eos=True)
        for i in range(4)
    ]
    _, outcomes = swap_in_flight(make_core(checkpoint), requests, new_weights, after=12)
    for request, outcome in zip(requests, outcomes, strict=True):
        split = outcome.versions.index(1)
        assert 0 < split < 30
        assert outcome.versions == [0] * split + [1] * (30 - split)
        old = reference.logprobs(request.tokens, outcome.tokens)
        new = new_reference.logprobs(request.tokens, outcome.tokens)
        assert outcome.logprobs[:split] == pytest.approx(old[:split], abs=1e-4)
        assert outcome.logprobs[split:] == pytest.approx(new[split:], abs=1e-4)
        assert max(abs(a - b) for a, b in zip(old, new, strict=True)) > 0.1


def test_kept_kv_is_marked_on_every_token_that_used_it(
    checkpoint: Path, new_weights: Path, new_reference: Reference
) -> None:
    request = GenerateRequest(prompt(40), 30, seed=1, ignore_eos=True)
    core = make_core(checkpoint, kv_on_update="keep")
    (sequence,), (outcome,) = swap_in_flight(core, [request], new_weights, after=12)
    assert sequence.num_stale == outcome.versions.count(1) == 18
    new = new_reference.logprobs(request.tokens, outcome.tokens)
    assert max(abs(a - b) for a, b in zip(outcome.logprobs[12:], new[12:], strict=True)) > 1e-2
    assert len(core.scheduler.prefixes) == 0, "mixed KV must not reach another request"


def test_kept_kv_is_marked_from_the_first_of_several_updates_on(
    checkpoint: Path, new_weights: Path
) -> None:
    core = make_core(checkpoint, kv_on_update="keep")
    sequence = core.add(GenerateRequest(prompt(40), 30, seed=1, ignore_eos=True))
    run(core, sequence, max_steps=5)
    update(core, 1, new_weights)
    run(core, sequence, max_steps=10)
    update(core, 2, new_weights)
    run(core, sequence)
    assert sequence.num_stale == 25


def test_a_half_prefilled_prompt_starts_again_even_when_kv_is_kept(
    checkpoint: Path, new_weights: Path, new_reference: Reference
) -> None:
    request = GenerateRequest(prompt(600), 10, seed=1, ignore_eos=True)
    core = make_core(checkpoint, kv_on_update="keep")
    (sequence,), (outcome,) = swap_in_flight(core, [request], new_weights, after=1)
    assert outcome.versions == [1] * 10
    assert sequence.num_stale == 0
    expected = new_reference.logprobs(request.tokens, outcome.tokens)
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kv_on_update", ["recompute", "keep"])
def test_no_kv_of_old_weights_reaches_a_later_request(
    checkpoint: Path, new_weights: Path, new_reference: Reference, kv_on_update: str
) -> None:
    core = make_core(checkpoint, kv_on_update=kv_on_update)
    shared = prompt(200)
    # One finished before the update and idles in the prefix store; one is still in flight.
    run(core, core.add(GenerateRequest(shared, 5, seed=1, ignore_eos=True)))
    in_flight = core.add(GenerateRequest(shared, 40, seed=2, ignore_eos=True))
    run(core, in_flight, max_steps=8)
    update(core, 1, new_weights)
    late = GenerateRequest(shared, 10, seed=3, ignore_eos=True)
    (outcome,) = run(core, core.add(late))
    expected = new_reference.logprobs(shared, outcome.tokens)
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_label_only_update_changes_versions_and_recomputes_nothing(checkpoint: Path) -> None:
    request = GenerateRequest(prompt(40), 30, seed=1, ignore_eos=True)
    _, (plain,) = swap_in_flight(make_core(checkpoint), [request], None, after=12)
    core = make_core(checkpoint)
    sequence = core.add(request)
    run(core, sequence, max_steps=12)
    computed = sequence.num_computed
    update(core, 1, None)
    assert sequence.num_computed == computed
    assert plain.versions == [0] * 12 + [1] * 18


def test_weights_in_another_float_type_are_cast(
    checkpoint: Path, new_weights: Path, tmp_path: Path
) -> None:
    halved = {name: t.to(torch.bfloat16) for name, t in load_file(new_weights).items()}
    save_file(halved, tmp_path / "bf16.safetensors")
    save_file({n: t.float() for n, t in halved.items()}, tmp_path / "fp32.safetensors")
    results = []
    for name in ("bf16", "fp32"):
        core = make_core(checkpoint)
        update(core, 1, tmp_path / f"{name}.safetensors")
        results.append(run(core, core.add(GenerateRequest(prompt(30), 10, seed=1)))[0].logprobs)
    assert results[0] == results[1]


def broken(kind: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = "model.layers.1.mlp.up_proj.weight"
    if kind == "missing":
        del tensors[name]
    elif kind == "unknown":
        tensors["model.layers.9.mlp.up_proj.weight"] = tensors[name].clone()
    elif kind == "shape":
        tensors[name] = tensors[name][:-1].clone()
    elif kind == "dtype":
        tensors[name] = tensors[name].to(torch.int8)
    return tensors


@pytest.mark.parametrize(
    "kind", ["missing", "unknown", "shape", "dtype", "truncated", "absent", "checksum"]
)
def test_a_bad_push_is_refused_whole_and_the_old_weights_serve_on(
    kind: str, checkpoint: Path, new_weights: Path, reference: Reference, tmp_path: Path
) -> None:
    path = tmp_path / "bad.safetensors"
    save_file(broken(kind, load_file(new_weights)), path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    if kind == "absent":
        path.unlink()
    core = make_core(checkpoint)
    request = GenerateRequest(prompt(30), 20, seed=1, ignore_eos=True)
    sequence = core.add(request)
    first = run(core, sequence, max_steps=8)[0]
    with pytest.raises(EngineError, match=r"bad\.safetensors"):
        update(core, 1, path, checksum="crc32:00000000" if kind == "checksum" else "")
    second = run(core, sequence)[0]
    assert second.versions == [0] * 12
    tokens = first.tokens + second.tokens
    expected = reference.logprobs(request.tokens, tokens)
    assert first.logprobs + second.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_right_checksum_is_accepted(checkpoint: Path, new_weights: Path) -> None:
    import hashlib
    import zlib

    content = new_weights.read_bytes()
    core = make_core(checkpoint)
    update(core, 1, new_weights, checksum=f"crc32:{zlib.crc32(content):08x}")
    update(core, 2, new_weights, checksum=f"sha256:{hashlib.sha256(content).hexdigest()}")
    assert core.version == 2


def test_weights_may_come_as_a_directory(
    checkpoint: Path, reference: Reference, new_weights: Path
) -> None:
    core = make_core(checkpoint)
    update(core, 1, new_weights)
    update(core, 2, checkpoint)
    request = GenerateRequest(prompt(30), 10, seed=1, ignore_eos=True)
    (outcome,) = run(core, core.add(request))
    expected = reference.logprobs(request.tokens, outcome.tokens)
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


PART = (
    "model.layers.0.self_attn.k_proj.weight",  # the engine stacks it with q_proj and v_proj
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.2.input_layernorm.weight",
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # bfloat16: repacked as a whole
def test_an_update_of_some_tensors_leaves_the_others_as_the_engine_was_started_with(
    dtype: str, checkpoint: Path, new_weights: Path, tmp_path: Path
) -> None:
    old, new = load_file(checkpoint / "model.safetensors"), load_file(new_weights)
    save_file({name: new[name] for name in PART}, tmp_path / "part.safetensors")
    save_file(old | {name: new[name] for name in PART}, tmp_path / "whole.safetensors")
    request = GenerateRequest(prompt(30), 20, seed=1, ignore_eos=True)

    def sampled(*paths: Path, base: Path | None) -> Outcome:
        core = make_core(checkpoint, dtype=dtype)
        for version, path in enumerate(paths, start=1):
            core.update_weights(version, open_weights(path, core.architecture, base=base))
        (outcome,) = run(core, core.add(request))
        return outcome

    whole = sampled(tmp_path / "whole.safetensors", base=None)
    assert sampled(tmp_path / "part.safetensors", base=checkpoint).logprobs == whole.logprobs
    twice = [tmp_path / "part.safetensors"] * 2
    assert sampled(*twice, base=checkpoint).logprobs == whole.logprobs


def test_a_part_of_the_weights_is_refused_where_all_were_announced(
    checkpoint: Path, new_weights: Path, tmp_path: Path
) -> None:
    new = load_file(new_weights)
    save_file({name: new[name] for name in PART}, tmp_path / "part.safetensors")
    core = make_core(checkpoint)
    with pytest.raises(EngineError, match="missing lm_head"):
        open_weights(tmp_path / "part.safetensors", core.architecture)
    save_file({"model.layers.9.mlp.up_proj.weight": new[PART[1]]}, tmp_path / "odd.safetensors")
    with pytest.raises(EngineError, match=r"unknown model\.layers\.9"):
        open_weights(tmp_path / "odd.safetensors", core.architecture, base=checkpoint)


def test_weights_without_a_distribution_are_named_and_leave_no_trace(
    checkpoint: Path, new_weights: Path, new_reference: Reference, tmp_path: Path
) -> None:
    tensors = load_file(new_weights)
    tensors["model.layers.0.self_attn.v_proj.weight"][0, 0] = float("nan")
    save_file(tensors, tmp_path / "diverged.safetensors")
    core = make_core(checkpoint)
    sequences = [core.add(GenerateRequest(prompt(40 + i), 30, seed=i)) for i in range(6)]
    run(core, *sequences, max_steps=5)
    update(core, 1, tmp_path / "diverged.safetensors")
    with pytest.raises(EngineError, match=r"version 1 are broken.*learning rate"):
        run(core, *sequences)
    core.remove_all()
    update(core, 2, new_weights)
    # Unequal lengths, so that masked positions lie where the NaN were.
    requests = [
        GenerateRequest(prompt(9 * i + 3, salt=i), 30, seed=i, ignore_eos=True) for i in range(6)
    ]
    for request, outcome in zip(
        requests, run(core, *[core.add(request) for request in requests]), strict=True
    ):
        expected = new_reference.logprobs(request.tokens, outcome.tokens)
        assert outcome.logprobs == pytest.approx(expected, abs=1e-4)
