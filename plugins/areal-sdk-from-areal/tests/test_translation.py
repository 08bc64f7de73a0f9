"""A configuration of AReaL is translated, and each of its keys has an outcome."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from areal_sdk import ConfigError
from areal_sdk_from_areal.configuration import Kind, read_keys, report_lines, translate

SAMPLE = Path(__file__).with_name("gsm8k.yaml")


def leaves(node: Any, prefix: str = "") -> set[str]:
    """Every key of a file that is no table, read in another way than the command does."""
    if not isinstance(node, dict) or not node:
        return {prefix}
    return {
        leaf
        for key, value in node.items()
        for leaf in leaves(value, f"{prefix}.{key}" if prefix else str(key))
    }


def test_every_key_has_one_outcome_and_is_printed_with_it() -> None:
    printed: dict[str, str] = {}
    kind = ""
    for line in report_lines(translate(read_keys(SAMPLE))):
        if not line.startswith("  "):
            kind = line.partition(" (")[0]
        elif " = " in line:
            key = line.split()[0]
            assert key not in printed, f"{key} has two outcomes"
            printed[key] = kind
    written = leaves(yaml.safe_load(SAMPLE.read_text()))
    assert len(written) > 100
    assert printed.keys() >= written
    assert {printed[key] for key in written} == set(Kind)
    known = translate(read_keys(SAMPLE))
    assert written <= known.outcomes.keys()
    assert not [key for key, found in known.outcomes.items() if "does not know" in found.why]


PLAIN: dict[str, Any] = {
    "actor.path": "tiny",
    "actor.use_decoupled_loss": True,
    "actor.kl_ctl": 0.0,
    "actor.reward_norm.mean_level": "group",
    "actor.reward_norm.std_level": "group",
}


@pytest.mark.parametrize(
    ("keys", "name", "options"),
    [
        ({}, "grpo", {"clip_low": 0.2, "clip_high": 0.2}),
        ({"actor.behav_imp_weight_cap": None}, "grpo", {"max_weight": float("inf")}),
        ({"actor.kl_ctl": 0.1, "ref.path": "tiny"}, "grpo", {"kl": 0.1}),
        (
            {"actor.rejection_sampling.upper": 3.0},
            "grpo",
            {"max_weight": 3.0, "beyond": "mask", "weight_level": "token"},
        ),
        (
            {"actor.rejection_sampling": {}},
            "grpo",
            {"max_weight": 5.0, "beyond": "mask", "weight_level": "token"},
        ),
        (
            {
                "actor.rejection_sampling.action": "clamp",
                "actor.rejection_sampling.level": "sequence",
                "actor.rejection_sampling.upper": 2.0,
            },
            "grpo",
            {"max_weight": 2.0, "beyond": "clamp", "weight_level": "sequence"},
        ),
        ({"rollout.agent.turn_discount": 0.9}, "grpo", {"discount": 0.9}),
        (
            {"critic.optimizer.type": "adam"},
            "ppo",
            {"critic_learning_rate": 1e-3},
        ),
        ({"actor.reward_norm.std_level": "batch"}, "litepo", {}),
        ({"actor.reward_norm.std_level": None}, "drgrpo", {}),
        (
            {"actor.reward_norm.mean_leave1out": True, "actor.reward_norm.std_level": None},
            "rloo",
            {},
        ),
        ({"actor.adv_norm": True}, "areal", {"group_norm": True}),
        ({"actor.m2_threshold": 0.05}, "m2po", {"threshold": 0.05}),
        ({"actor.importance_sampling_level": "sequence"}, "gspo", {}),
        ({"actor.use_sapo_loss": True, "actor.sapo_tau_neg": 1.1}, "sapo", {"tau_negative": 1.1}),
        ({"actor.use_decoupled_loss": False}, "naive_ppo", {}),
        (
            {"critic.path": "tiny", "critic.eps_clip": 0.4, "actor.gae_lambda": 0.9},
            "ppo",
            {"value_clip": 0.4, "trace": 0.9},
        ),
        (
            {
                "actor.prox_logp_method": "loglinear",
                "actor.behave_imp_weight_cap": 3.0,
                "actor.behave_imp_weight_mode": "sequence_truncate",
            },
            "grpo",
            {
                "proximal": "interpolate",
                "max_weight": 3.0,
                "weight_level": "sequence",
                "beyond": "clamp",
            },
        ),
        (
            {"actor.eps_clip": 0.4, "actor.c_clip": 3.0},
            "grpo",
            {"clip_low": 0.4, "clip_high": 0.4, "dual_clip": 3.0},
        ),
    ],
)
def test_the_objective_finds_its_preset(
    keys: dict[str, Any], name: str, options: dict[str, Any]
) -> None:
    settings = translate({**PLAIN, **keys}).settings
    assert settings["algorithm.name"] == name
    assert {
        f"algorithm.{name}.{key}": value for key, value in options.items()
    }.items() <= settings.items()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("actor.eps_clip", 0.0, "greater than 0"),
        ("actor.dtype", "float16", "bfloat16 or float32"),
        ("actor.optimizer.type", "sgd", "AdamW"),
        ("actor.optimizer.lr_scheduler_type", "cosine", "set run.steps"),
        ("actor.mask_no_eos_with_zero", True, "rollout.truncated"),
        ("actor.peft_type", "dora", "adapters are LoRA's"),
        ("allocation_mode", "vllm:d4+d4", "vllm is no engine here"),
        ("gconfig.top_p", 0.9, "all tokens"),
        ("ref.path", "another", "begins with"),
        ("actor.kl_ctl", 0.1, "without a ref"),
        ("actor.rejection_sampling", None, "leaves the importance weight out"),
        ("actor.rejection_sampling.metric", "kl_k3", "not by a KL"),
        ("actor.rejection_sampling.lower", 0.5, "no lower bound"),
        ("rollout.agent.mode", "online", "serve --learn"),
        ("rollout.temperature", 3, "no such setting"),
        ("sglang.dp_size", 2, "--dp-size"),
        ("total_train_n_seqs", 100, "run.steps"),
        ("tokenizer_path", "${oc.env:HOME}", "only AReaL resolves this"),
    ],
)
def test_a_value_that_cannot_be_kept_is_named(key: str, value: object, why: str) -> None:
    outcome = translate({**PLAIN, key: value}).outcomes[key]
    assert (outcome.kind, why in outcome.why or why) == (Kind.NOT_SUPPORTED, True) or (
        outcome.kind is Kind.TRANSLATED and why in outcome.why  # what could be placed is
    )


def test_a_bound_on_a_kl_is_no_bound_on_a_weight() -> None:
    keys = {"actor.rejection_sampling.metric": "kl_k2", "actor.rejection_sampling.upper": 0.5}
    translation = translate({**PLAIN, **keys})
    assert not any(key.endswith("max_weight") for key in translation.settings)
    assert translation.outcomes["actor.rejection_sampling.upper"].kind is Kind.NOT_SUPPORTED


def test_the_overlong_penalty_ends_where_areal_ends_it() -> None:
    keys = {
        "actor.adv_norm": True,
        "actor.overlong_reward_penalty": True,
        "actor.overlong_tokens": 64,
        "gconfig.max_new_tokens": 512,
    }
    assert translate({**PLAIN, **keys}).settings["algorithm.areal.overlong_limit"] == 1024
    named = {**keys, "actor.max_new_tokens": 512}
    assert translate({**PLAIN, **named}).settings["algorithm.areal.overlong_limit"] == 512


def test_where_the_file_is_silent_areals_defaults_count() -> None:
    settings = translate({**PLAIN, "actor.optimizer.type": "adam"}).settings
    assert settings["trainer.learning_rate"] == 1e-3
    assert settings["trainer.weight_decay"] == 0.01
    assert (settings["run.seed"], settings["rollout.epochs"]) == (1, 1)
    assert settings["rollout.request_timeout_s"] == 3600.0
    assert "rollout.max_inflight" not in settings
    at_once: dict[str, Any] = {"rollout.consumer_batch_size": 8, "train_dataset.batch_size": 8}
    at_once |= {"gconfig.n_samples": 4, "rollout.max_concurrent_rollouts": None}
    assert translate({**PLAIN, **at_once}).settings["rollout.max_inflight"] == 32


def test_an_actor_without_an_optimiser_gets_no_learning_rate() -> None:
    assert "trainer.learning_rate" not in translate(PLAIN).settings


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({}, {"rank": 32, "alpha": 16}),
        (
            {"actor.lora_rank": 8, "actor.lora_alpha": 4, "actor.target_modules": ["all-linear"]},
            {"rank": 8, "alpha": 4},
        ),
        (
            {"actor.target_modules": ["q_proj", "v_proj"], "actor.peft_type": "lora"},
            {"rank": 32, "alpha": 16, "targets": ["q_proj", "v_proj"]},
        ),
    ],
)
def test_an_adapter_stays_an_adapter(keys: dict[str, Any], settings: dict[str, Any]) -> None:
    translation = translate({**PLAIN, "actor.use_lora": True, **keys})
    found = {k: v for k, v in translation.settings.items() if k.startswith("trainer.lora.")}
    assert found == {f"trainer.lora.{name}": value for name, value in settings.items()}
    assert not translation.of_kind(Kind.NOT_SUPPORTED).keys() & {"actor.use_lora", *keys}


def test_the_layout_of_gpus_becomes_servers_and_ranks() -> None:
    settings = translate({**PLAIN, "allocation_mode": "sglang.d4p1t2+fsdp:d8p1t1"}).settings
    assert (settings["engine.sglang.servers"], settings["engine.sglang.tp_size"]) == (4, 2)
    assert settings["trainer.ranks"] == 8
    cut = translate({**PLAIN, "allocation_mode": "sglang:d4p2t1+d4p1t2"}).outcomes[
        "allocation_mode"
    ]
    assert cut.why == "not supported: p2 of the servers; t2 of the trainer"


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("", "holds no keys"),
        ("actor: [", "not valid YAML"),
        ("actor: {path: '${model.path}'}", "write the value itself"),
        ("a: ${b}\nb: ${a}", "refers to itself"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_cure(
    tmp_path: Path, text: str, cure: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=cure):
        read_keys(file)
