"""Mixtures of experts: what is discrete in them stays as it is, whatever the trainer changes around them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_sdk.algorithms.batch import make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.config import RunSection
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.checkpoint import (
    export_checkpoint,
    export_model,
    load_checkpoint,
    save_checkpoint,
)
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.reward_model import RewardModel
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.models.checkpoint import copy_all_but_weights
from areal_sdk.models.families import adapted_layers
from areal_sdk.trainer import Demonstration, PresetSpec
from tests.fsdp.specs import EVERYTHING
from tests.toolbox.families import saved

from .agreement import assert_same_learning, assert_same_metrics
from .episodes import make_groups
from .specs import changed, trainer_spec

ROWS = [Demonstration(tuple(range(40, 64)), (False,) * 4 + (True,) * 20)]
NUM_EXPERTS = 6
MIXTURE = {"vocab_size": 263, "num_experts": NUM_EXPERTS, "num_experts_per_tok": 2}


def mixture(directory: Path, model_dir: Path, family: str = "qwen3_moe", **fields: Any) -> Path:
    """A tiny mixture with the tokenizer of the tiny model."""
    directory.mkdir(parents=True)
    copy_all_but_weights(model_dir, directory)
    return saved(directory, family, **{**MIXTURE, **fields})


@pytest.fixture(scope="module")
def mixture_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixture(tmp_path_factory.mktemp("models") / "mixture", model_dir)


@pytest.fixture
def spec(mixture_dir: Path) -> TrainerSpec:
    plain = trainer_spec(
        mixture_dir, precision="float32", device="cpu", learning_rate=1e-2, warmup_steps=0
    )
    return replace(plain, run=RunSection(deterministic=True))


def taught(spec: TrainerSpec, *, times: int = 3) -> RankTrainer:
    trainer = RankTrainer(spec)
    for _ in range(times):
        trainer.learn(ROWS, learning_rate=1e-2)
    return trainer


def rescored(directory: Path) -> float:
    """The logprobs of the rows by plain transformers, summed."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.tensor(ROWS[0].tokens)
    with torch.no_grad():
        distributions = torch.log_softmax(model(tokens[None]).logits[0, :-1], -1)
    return float(distributions.gather(1, tokens[1:, None])[3:].sum())


def routed(model: Policy | RewardModel, layer: int) -> Any:
    """The routed part of a layer."""
    return model.layers[layer].mlp


def chosen_by(router: nn.Module) -> list[Tensor]:
    """Filled with the experts that the tokens of each pass chose, sorted."""
    seen: list[Tensor] = []
    router.register_forward_hook(lambda _m, _i, output: seen.append(output[2].sort(-1).values))
    return seen


def test_packing_and_shared_prompts_change_no_token_s_experts(mixture_dir: Path) -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 250, 9).tolist()
    rows = [[*prompt, *rng.integers(3, 250, n).tolist()] for n in (4, 4, 7)]
    examples = [
        made
        for row in rows
        if (made := make_demonstration(row, [i >= 9 for i in range(len(row))])) is not None
    ]
    policy = load_policy(mixture_dir)
    packed = chosen_by(routed(policy, 1).gate)
    trees = build_trees([example.inputs for example in examples], max_tokens=1000)
    batch = make_batch(trees, examples, version=0)
    policy(batch)
    assert len(batch.tokens_N) < sum(map(len, rows)) - 9, "prompts are shared"

    plain = AutoModelForCausalLM.from_pretrained(mixture_dir, dtype=torch.float32)
    alone = chosen_by(plain.model.layers[1].mlp.gate)
    expected: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        plain(torch.tensor([row]))
        for place, experts in enumerate(alone[-1].tolist()):
            expected[(place, row[place])] = experts
    places = zip(batch.positions_N.tolist(), batch.tokens_N.tolist(), strict=True)
    assert packed[0].tolist() == [expected[place] for place in places]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_computed_again_chooses_the_same_experts(spec: TrainerSpec, precision: str) -> None:
    spec = changed(spec, precision=precision)
    plain, again = (
        taught(changed(spec, activation_checkpointing=which)) for which in ("none", "full")
    )
    seen = chosen_by(routed(again.policy, 0).gate)
    again.learn(ROWS, learning_rate=1e-2)
    assert len(seen) == 2
    assert torch.equal(*seen)
    plain.learn(ROWS, learning_rate=1e-2)
    for one, other in zip(plain.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_resumed_trainer_goes_on_bit_by_bit_and_its_checkpoint_is_exported(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    def losses(trainer: RankTrainer, seeds: range) -> list[float]:
        return [trainer.step(make_groups(seed=seed), version=0)["loss"] for seed in seeds]

    uninterrupted = RankTrainer(spec)
    expected = losses(uninterrupted, range(4))
    first = RankTrainer(spec)
    assert losses(first, range(2)) == expected[:2]
    save_checkpoint(first, tmp_path / "step-2", {})
    export_model(first, tmp_path / "now", dtype=torch.float32)
    second = RankTrainer(replace(spec, run=RunSection(deterministic=True, seed=99)))
    load_checkpoint(second, tmp_path / "step-2")
    assert losses(second, range(2, 4)) == expected[2:]

    export_checkpoint(
        tmp_path / "step-2", tmp_path / "later", model_dir=spec.model_dir, dtype=torch.float32
    )
    now, later = (load_file(tmp_path / name / "model.safetensors") for name in ("now", "later"))
    assert now.keys() == later.keys() == load_file(spec.model_dir / "model.safetensors").keys()
    assert all(torch.equal(tensor, later[name]) for name, tensor in now.items())


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral", "olmoe"])
def test_what_is_published_after_updates_rescores(
    family: str, model_dir: Path, tmp_path: Path
) -> None:
    directory = mixture(tmp_path / "model", model_dir, family)
    before = rescored(directory)
    trainer = taught(trainer_spec(directory, precision="float32", warmup_steps=0))
    served = tmp_path / "served"
    served.mkdir()
    copy_all_but_weights(directory, served)
    Publisher(served, dtype=torch.float32).publish(trainer.policy, 1, is_writer=True)
    [published] = served.glob("*.safetensors")
    assert load_file(published).keys() == load_file(directory / "model.safetensors").keys()
    save_file(load_file(published), served / "model.safetensors", metadata={"format": "pt"})
    now = rescored(served)
    assert now == pytest.approx(trainer.score(ROWS)[0], abs=1e-3)
    assert now - before > 1.0, "it has learnt"


@pytest.mark.long
async def test_two_ranks_learn_what_one_learns(spec: TrainerSpec, tmp_path: Path) -> None:
    """The run has a reference, a critic and a screen; 5 experts do not divide by the ranks."""
    directory = mixture(tmp_path / "model", spec.model_dir, num_experts=5)
    spec = changed(replace(spec, model_dir=directory), learning_rate=1e-3, num_minibatches=2)
    spec = replace(spec, preset=PresetSpec(EVERYTHING), publish_dtype="float32")
    groups = make_groups(3, seed=1, version=1) + make_groups(2, seed=2, version=0)
    alone = RankTrainer(spec)
    client = FSDPTrainer(changed(spec, ranks=2), log_dir=tmp_path / "logs")
    await client.start()
    try:
        for _ in range(2):
            one = alone.step(groups, version=1)
            both = await client.step(groups, version=1, timeout_s=240)
            assert_same_metrics(one, both)
        await client.save(tmp_path / "step-2", {})
        await client.export(tmp_path / "final")
    finally:
        await client.aclose()
    together = RankTrainer(spec)
    load_checkpoint(together, tmp_path / "step-2")
    assert_same_learning(alone, together)
    exported = load_file(tmp_path / "final" / "model.safetensors")
    assert exported.keys() == load_file(directory / "model.safetensors").keys()
    reloaded = RankTrainer(replace(spec, model_dir=tmp_path / "final"))
    assert reloaded.score(ROWS) == pytest.approx(together.score(ROWS), rel=1e-5)


def test_an_expert_that_no_token_chose_learns_nothing(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    experts = routed(trainer.policy, 0).experts
    before = [p.detach().clone() for p in experts.parameters()]
    seen = chosen_by(routed(trainer.policy, 0).gate)
    few = Demonstration((7, 7, 7), (False, True, True))
    trainer.learn([few], learning_rate=1e-2)
    busy = {expert for experts_of_token in seen[0].tolist() for expert in experts_of_token}
    assert 0 < len(busy) < NUM_EXPERTS
    for parameter, was in zip(experts.parameters(), before, strict=True):
        moved = {e for e in range(NUM_EXPERTS) if not torch.equal(parameter[e], was[e])}
        assert moved == busy


def test_a_reward_model_is_exported_with_experts_by_name(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = RankTrainer(replace(spec, learns_rewards=True))
    row = Demonstration(tuple(range(3, 40)), (False,) * 37)
    for _ in range(3):
        trainer.learn([row], learning_rate=1e-2, divisor=1.0)
    export_model(trainer, tmp_path / "judge", dtype=torch.float32)
    save_checkpoint(trainer, tmp_path / "step-3", {})
    export_checkpoint(
        tmp_path / "step-3", tmp_path / "later", model_dir=spec.model_dir, dtype=torch.float32
    )
    now, later = (load_file(tmp_path / name / "model.safetensors") for name in ("judge", "later"))
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in now
    assert now.keys() == later.keys()
    judge = AutoModelForSequenceClassification.from_pretrained(tmp_path / "judge")
    with torch.no_grad():
        found = judge(torch.tensor([row.tokens])).logits.item()
    assert abs(found) > 1e-2
    assert found == pytest.approx(trainer.score([row])[0], rel=1e-4)


# adapters


def test_an_adapter_reaches_all_linear_layers_and_no_expert(
    mixture_dir: Path, model_dir: Path, tmp_path: Path
) -> None:
    attention = ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert adapted_layers(mixture_dir, "all-linear") == attention
    beside = mixture(tmp_path / "model", model_dir, "qwen2_moe")
    shared = ["down_proj", "gate_proj", "shared_expert_gate", "up_proj"]
    assert adapted_layers(beside, "all-linear") == sorted([*attention, *shared])
    for target in ("gate_proj", "gate"):
        with pytest.raises(
            ConfigError, match=f"{target} of .* are in its experts.*: choose of k_proj"
        ):
            adapted_layers(mixture_dir, ("q_proj", target))


def test_frozen_experts_are_kept_in_the_type_they_are_computed_in_and_never_published(
    mixture_dir: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    half.mkdir()
    copy_all_but_weights(mixture_dir, half)
    whole = AutoModelForCausalLM.from_pretrained(mixture_dir, dtype=torch.bfloat16)
    whole.save_pretrained(half)
    spec = trainer_spec(half, device="cpu", warmup_steps=0, lora={"rank": 4})
    trainer, wide = RankTrainer(spec), RankTrainer(spec)
    kept = routed(trainer.policy, 0)
    assert kept.experts.gate_up_proj.dtype is kept.experts.down_proj.dtype is torch.bfloat16
    assert kept.gate.weight.dtype is torch.float32
    for weight in wide.policy.served_weights():
        weight.base.data = weight.base.data.float()
    for learner in (trainer, wide):
        for _ in range(2):
            learner.learn(ROWS, learning_rate=1e-2)
    assert trainer.score(ROWS) == wide.score(ROWS), "the same numbers, at half the size"
    publisher = Publisher(tmp_path / "served", dtype=torch.bfloat16, contents="changed")
    update = publisher.publish(trainer.policy, 1, is_writer=True)
    assert update.path is not None
    assert {name.split(".")[3] for name in load_file(update.path)} == {"self_attn"}


# files


@pytest.mark.parametrize("is_filled", [True, False])
def test_an_expert_that_the_files_lack_is_named(
    mixture_dir: Path, tmp_path: Path, is_filled: bool
) -> None:
    weights = load_file(mixture_dir / "model.safetensors")
    del weights["model.layers.1.mlp.experts.3.up_proj.weight"]
    copy_all_but_weights(mixture_dir, tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"no model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight"):
        load_policy(tmp_path, is_filled=is_filled)


@pytest.mark.parametrize("is_filled", [True, False])
def test_more_experts_than_config_json_counts_are_refused(
    mixture_dir: Path, tmp_path: Path, is_filled: bool
) -> None:
    weights = load_file(mixture_dir / "model.safetensors")
    more = {n.replace("experts.0", "experts.6"): w.clone() for n, w in weights.items()}
    copy_all_but_weights(mixture_dir, tmp_path)
    save_file({**more, **weights}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"experts\.6\.\w+\.weight.*num_experts"):
        load_policy(tmp_path, is_filled=is_filled)
