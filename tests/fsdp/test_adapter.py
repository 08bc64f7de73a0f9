"""LoRA: what is trained, kept and served where only an adapter is trained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_sdk.config import RunSection
from areal_sdk.errors import CheckpointError, ConfigError
from areal_sdk.fsdp.adapter import WithoutAdapter
from areal_sdk.fsdp.checkpoint import (
    export_checkpoint,
    export_model,
    load_checkpoint,
    save_checkpoint,
)
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.models.checkpoint import ADAPTER, copy_all_but_weights, stored_dtypes
from areal_sdk.models.families import TRAINED_FAMILIES, adapted_layers
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.trainer import Demonstration
from tests.toolbox.families import saved

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset

pytestmark = pytest.mark.filterwarnings(  # by PeftModel, which only these tests use
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

LORA = {"rank": 4, "alpha": 8.0}
SCALING = 2.0
ROWS = [Demonstration(tuple(range(40, 64)), (False,) * 20 + (True,) * 4)]


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    plain = trainer_spec(
        model_dir, precision="float32", learning_rate=1e-2, warmup_steps=0, lora=LORA
    )
    return replace(plain, run=RunSection(deterministic=True))


@pytest.fixture(scope="session")
def half_model_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, its weights stored in bfloat16."""
    directory = tmp_path_factory.mktemp("models") / "tiny-bfloat16"
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    copy_all_but_weights(model_dir, directory)
    return directory


def stepped(trainer: RankTrainer, seeds: range = range(2)) -> list[dict[str, float]]:
    """Metrics without times."""
    steps = [trainer.step(make_groups(seed=seed), version=0) for seed in seeds]
    return [{k: v for k, v in step.items() if not k.endswith("_s")} for step in steps]


def trained(spec: TrainerSpec, *, steps: int = 2) -> RankTrainer:
    trainer = RankTrainer(spec)
    stepped(trainer, range(steps))
    return trainer


def by_hand(trainer: RankTrainer, model_dir: Path) -> dict[str, Tensor]:
    """base + scaling * B A, from the file of the base and the trained matrices."""
    weights: dict[str, Tensor] = load_file(model_dir / "model.safetensors")
    adapter = trainer.policy.named_weights()
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if (a := adapter.get(f"{layer}.lora_A.weight")) is not None:
            b = adapter[f"{layer}.lora_B.weight"]
            weights[name] = (weight.float() + (b @ a) * SCALING).detach()
    return weights


# what is trained


def test_the_adapted_model_begins_as_its_base(spec: TrainerSpec) -> None:
    full = RankTrainer(replace(spec, trainer=changed(spec, lora={}).trainer))
    assert RankTrainer(spec).score(ROWS) == full.score(ROWS)


def test_only_the_adapter_has_gradients_and_moments(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    before = {n: p.clone() for n, p in trainer.policy.model.named_parameters()}
    stepped(trainer)
    adapter = trainer.policy.named_weights()
    assert len(adapter) == 3 * 7 * 2
    assert {p for p in trainer.optimizer.state if trainer.optimizer.state[p]} == {*adapter.values()}
    for name, parameter in trainer.policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) != (".lora_" in name), name
        assert parameter.requires_grad == (".lora_" in name)


def test_the_targets_are_those_that_were_named(spec: TrainerSpec) -> None:
    adapter = RankTrainer(changed(spec, lora={**LORA, "targets": ("q_proj", "down_proj")}))
    names = {name.split(".")[-3] for name in adapter.policy.named_weights()}
    assert names == {"q_proj", "down_proj"}


def test_a_target_that_the_model_has_not_is_refused_with_those_it_has(model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"is named query; it has down_proj, gate_proj, k_proj"):
        adapted_layers(model_dir, ("q_proj", "query"))
    with pytest.raises(ConfigError, match="is named embed_tokens, q_norm"):
        adapted_layers(model_dir, ("embed_tokens", "q_norm"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_frozen_matrices_are_kept_in_the_type_they_are_computed_in(
    spec: TrainerSpec, half_model_dir: Path, precision: str
) -> None:
    spec = changed(replace(spec, model_dir=half_model_dir), precision=precision)
    trainer = RankTrainer(spec)
    kept = {w.parts[0].name: w.base.dtype for w in trainer.policy.served_weights()}
    assert kept["model.layers.0.mlp.up_proj.weight"] is getattr(torch, precision)
    assert kept["model.embed_tokens.weight"] is torch.float32
    assert kept["model.norm.weight"] is torch.float32
    wide = RankTrainer(spec)
    for weight in wide.policy.served_weights():
        weight.base.data = weight.base.data.float()
    assert stepped(trainer) == stepped(wide), "the same numbers, at half the size"


def test_the_reference_is_the_base_and_no_second_model(spec: TrainerSpec) -> None:
    spec = with_preset(spec, "grpo", kl=0.1)
    ours, theirs = RankTrainer(spec), RankTrainer(spec)
    assert isinstance(ours.reference, WithoutAdapter)
    theirs.reference = load_policy(spec.model_dir).requires_grad_(False)
    found, expected = stepped(ours, range(3)), stepped(theirs, range(3))
    assert found[-1]["kl_reference"] > 1e-3
    assert found == expected


def test_dropout_acts_on_the_adapter_in_fine_tuning_and_in_no_score(spec: TrainerSpec) -> None:
    dropping = changed(spec, lora={**LORA, "dropout": 0.5})
    with_it, without = trained(dropping), trained(spec)
    assert with_it.score(ROWS) == without.score(ROWS), "a step on episodes has no dropout"
    losses = [t.learn(ROWS, learning_rate=1e-2)["loss"] for t in (with_it, without)]
    assert losses[0] != losses[1]
    assert with_it.score(ROWS) == with_it.score(ROWS)


def test_a_critic_trains_an_adapter_and_its_head(spec: TrainerSpec) -> None:
    trainer = trained(with_preset(spec, "ppo"))
    assert trainer.critic is not None
    names = trainer.critic.model.named_weights()
    assert all(".lora_" in name or name.startswith("head.") for name in names)
    assert trainer.critic.num_updates == 2


# checkpoints


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_resumed_trainer_repeats_the_uninterrupted_one_bit_by_bit(
    spec: TrainerSpec, tmp_path: Path, algorithm: str
) -> None:
    spec = with_preset(spec, algorithm)
    uninterrupted = stepped(RankTrainer(spec), range(4))
    first = RankTrainer(spec)
    stepped(first)
    save_checkpoint(first, tmp_path / "step-2", {"kept": 64})
    second = RankTrainer(replace(spec, run=RunSection(deterministic=True, seed=99)))
    assert load_checkpoint(second, tmp_path / "step-2") == {"kept": 64}
    assert stepped(second, range(2, 4)) == uninterrupted[2:]


def test_a_checkpoint_holds_the_adapter_alone_and_names_its_model(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    save_checkpoint(trained(spec), tmp_path / "lora", {})
    save_checkpoint(trained(changed(spec, lora={})), tmp_path / "full", {})
    stored = FileSystemReader(tmp_path / "lora").read_metadata().state_dict_metadata
    assert {name for name in stored if ".lora_" not in name} == {"rng.0"}
    assert len(stored) == 1 + 42 * 4  # values, two moments and a counter
    size = {
        name: sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        for name in ("lora", "full")
    }
    assert size["lora"] < size["full"] / 5
    state = json.loads((tmp_path / "lora" / "trainer.json").read_text())
    assert state["adapter"]["rank"] == 4
    assert state["adapter"]["base"]["directory"] == str(spec.model_dir)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora": {}}, r"holds an adapter, and the run trains all weights .*begin a new run"),
        ({"lora": {**LORA, "rank": 8}}, r"trainer\.lora\.rank = 4, and the run has 8: set it as"),
        ({"lora": {**LORA, "targets": "q_proj"}}, r"trainer\.lora\.targets = all-linear, and"),
    ],
)
def test_a_checkpoint_of_another_adapter_is_refused(
    spec: TrainerSpec, tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    save_checkpoint(RankTrainer(spec), tmp_path / "step-0", {})
    with pytest.raises(CheckpointError, match=told):
        load_checkpoint(RankTrainer(changed(spec, **settings)), tmp_path / "step-0")


def test_an_adapter_of_other_weights_is_refused(spec: TrainerSpec, tmp_path: Path) -> None:
    save_checkpoint(RankTrainer(spec), tmp_path / "step-0", {})
    other = make_tiny_model(tmp_path / "other", seed=1)
    told = f"holds an adapter of the weights in {spec.model_dir}, .*: put the former back"
    with pytest.raises(CheckpointError, match=told):
        load_checkpoint(RankTrainer(replace(spec, model_dir=other)), tmp_path / "step-0")
    with pytest.raises(CheckpointError, match=told):
        export_checkpoint(
            tmp_path / "step-0", tmp_path / "out", model_dir=other, dtype=torch.float32
        )


# what is served


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_published_file_holds_the_merged_tensors_that_changed(
    spec: TrainerSpec, tmp_path: Path, dtype: torch.dtype
) -> None:
    trainer = trained(spec)
    expected = {name: t.to(dtype) for name, t in by_hand(trainer, spec.model_dir).items()}
    whole = Publisher(tmp_path / "all", dtype=dtype).publish(trainer.policy, 1, is_writer=True)
    part = Publisher(tmp_path / "part", dtype=dtype, contents="changed")
    update = part.publish(trainer.policy, 1, is_writer=True)
    assert (whole.contents, update.contents) == ("all", "changed")
    assert whole.path is not None
    assert update.path is not None
    everything, some = load_file(whole.path), load_file(update.path)
    assert everything.keys() == expected.keys()
    assert some.keys() == {name for name in expected if "_proj" in name}
    for name, tensor in (everything | some).items():
        assert torch.equal(tensor, expected[name]), name


def test_without_an_adapter_all_tensors_may_have_changed(spec: TrainerSpec, tmp_path: Path) -> None:
    policy = RankTrainer(changed(spec, lora={})).policy
    publisher = Publisher(tmp_path, dtype=torch.float32, contents="changed")
    update = publisher.publish(policy, 1, is_writer=True)
    assert update.path is not None
    assert load_file(update.path).keys() == policy.named_weights().keys()


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_the_merged_weights_of_every_family_compute_what_the_adapter_computes(
    family: str, tmp_path: Path
) -> None:
    directory = saved(tmp_path / "model", family)
    spec = trainer_spec(directory, precision="float32", warmup_steps=0, lora=LORA)
    trainer = RankTrainer(spec)
    tokens = tuple(range(3, 40))
    rows = [Demonstration(tokens, tuple(i > 2 for i in range(len(tokens))))]
    before = trainer.score(rows)
    for _ in range(2):
        trainer.learn(rows, learning_rate=1e-2)
    export_model(trainer, tmp_path / "export", dtype=torch.float32)
    assert stored_dtypes(tmp_path / "export") == stored_dtypes(directory)
    merged = RankTrainer(trainer_spec(tmp_path / "export", precision="float32"))
    assert merged.score(rows) == pytest.approx(trainer.score(rows), abs=1e-3)
    assert abs(trainer.score(rows)[0] - before[0]) > 0.1


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.tensor([ROWS[0].tokens])).logits
    return found


def test_an_export_is_a_plain_model_with_its_adapter_beside_it(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = trained(spec)
    export_model(trainer, tmp_path / "final", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    expected = by_hand(trainer, spec.model_dir)
    for name, parameter in merged.named_parameters():
        assert torch.equal(parameter, expected[name]), name

    base = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    untrained = logits(base)
    adapted = PeftModel.from_pretrained(base, tmp_path / "final" / ADAPTER)
    torch.testing.assert_close(logits(adapted), logits(merged), atol=1e-5, rtol=1e-5)
    assert (logits(merged) - untrained).abs().max() > 1e-3
    for name, parameter in adapted.merge_and_unload().named_parameters():
        assert torch.equal(parameter, expected[name]), f"peft merges {name} differently"

    # Whoever begins with the merged model gets no adapter: it has one inside already.
    copied = tmp_path / "described"
    copied.mkdir()
    copy_all_but_weights(tmp_path / "final", copied)
    assert not (copied / ADAPTER).exists()


def test_a_checkpoint_is_exported_without_a_trainer(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = trained(spec)
    save_checkpoint(trainer, tmp_path / "step-2", {})
    export_model(trainer, tmp_path / "now", dtype=torch.bfloat16)
    export_checkpoint(
        tmp_path / "step-2", tmp_path / "later", model_dir=spec.model_dir, dtype=torch.bfloat16
    )
    for file in ("model.safetensors", f"{ADAPTER}/adapter_model.safetensors"):
        now, later = (load_file(tmp_path / name / file) for name in ("now", "later"))
        assert now.keys() == later.keys()
        assert all(torch.equal(tensor, later[name]) for name, tensor in now.items())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_reward_model_is_exported_merged_and_as_an_adapter_with_its_head(
    family: str, tmp_path: Path
) -> None:
    directory = saved(tmp_path / "model", family, tie_word_embeddings=family == "qwen3")
    shutil.copyfile(
        make_tiny_model(tmp_path / "t") / "tokenizer.json", directory / "tokenizer.json"
    )
    spec = trainer_spec(directory, precision="float32", warmup_steps=0, lora=LORA)
    trainer = RankTrainer(replace(spec, learns_rewards=True))
    tokens = tuple(range(3, 40))
    row = Demonstration(tokens, (False,) * len(tokens))
    for _ in range(3):
        trainer.learn([row], learning_rate=1e-2, divisor=1.0)
    export_model(trainer, tmp_path / "judge", dtype=torch.float32)
    save_checkpoint(trainer, tmp_path / "step-3", {})
    export_checkpoint(
        tmp_path / "step-3", tmp_path / "later", model_dir=directory, dtype=torch.float32
    )
    now, later = (load_file(tmp_path / name / "model.safetensors") for name in ("judge", "later"))
    assert now.keys() == later.keys()
    assert all(torch.equal(tensor, later[name]) for name, tensor in now.items())
    expected = trainer.score([row])[0]
    assert abs(expected) > 1e-2
    judge = AutoModelForSequenceClassification.from_pretrained(tmp_path / "judge")
    base = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=1)
    adapted = PeftModel.from_pretrained(base, tmp_path / "judge" / ADAPTER)
    for model in (judge, adapted):
        with torch.no_grad():
            assert model(torch.tensor([tokens])).logits.item() == pytest.approx(expected, rel=1e-4)


# ranks


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
async def test_two_ranks_compute_what_one_computes(
    spec: TrainerSpec, half_model_dir: Path, tmp_path: Path, stored: str
) -> None:
    """A file of bfloat16 makes the frozen and the trained parameters of a shard differ in type."""
    spec = with_preset(spec, "grpo", kl=0.1)
    if stored == "bfloat16":
        spec = changed(replace(spec, model_dir=half_model_dir), precision="bfloat16")
    alone = RankTrainer(spec)
    two = FSDPTrainer(changed(spec, ranks=2), log_dir=tmp_path / "logs")
    await two.start()
    try:
        for seed in range(3):
            groups = make_groups(seed=seed)
            one = alone.step(groups, version=0)
            both = await two.step(groups, version=0, timeout_s=60)
            tolerance = 1e-5 if stored == "float32" else 2e-2
            for name in ("loss", "grad_norm", "kl_reference"):
                assert both[name] == pytest.approx(one[name], rel=tolerance, abs=1e-6), name
        update = await two.publish(1)
        assert update.path is not None
        published = load_file(update.path)
        for name, tensor in by_hand(alone, spec.model_dir).items():
            assert published[name].float().allclose(tensor.float(), atol=1e-2), name
        await two.save(tmp_path / "step-3", {})
        await two.export(tmp_path / "final")
    finally:
        await two.aclose()
    again = RankTrainer(spec)
    load_checkpoint(again, tmp_path / "step-3")
    assert again.score(ROWS) == pytest.approx(alone.score(ROWS), rel=1e-3)
    merged = RankTrainer(replace(changed(spec, lora={}), model_dir=tmp_path / "final"))
    assert merged.score(ROWS) == pytest.approx(alone.score(ROWS), rel=1e-2)
