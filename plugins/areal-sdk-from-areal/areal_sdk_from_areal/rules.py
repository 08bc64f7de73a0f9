"""The keys that are not part of the objective: run, rollouts, engine, trainer."""

import re
from collections.abc import Mapping
from typing import Any

from areal_sdk_from_areal.outcome import (
    JSON,
    KeyOutcome,
    Keys,
    Rule,
    becomes,
    never,
    not_applicable,
    not_supported,
    only,
    to,
)

ALL_LINEAR = "all-linear"
"""Every linear layer, in AReaL and here, where it is the default."""
NO_LIMIT = 1_000_000
"""Steps of a run that ends when its epochs do."""

LAYOUT = re.compile(r"(?P<engine>[a-z]+)[.:](?P<servers>(?:[a-z]\d+)+)\+(?P<trainer>.+)")
TRAINER = re.compile(r"(?:(?P<backend>[a-z]+)[.:])?(?P<ranks>(?:[a-z]\d+)+)")


def _name(_value: JSON, keys: Keys) -> KeyOutcome:
    parts = (keys.get("experiment_name"), keys.get("trial_name"))
    return becomes({"run.name": "-".join(str(part) for part in parts if part is not None)})


def _epochs(value: JSON, keys: Keys) -> KeyOutcome:
    ends = {} if keys.get("total_train_steps") is not None else {"run.steps": NO_LIMIT}
    return becomes(
        {"rollout.epochs": value, **ends}, "the run ends with its epochs" if ends else ""
    )


def _group_size(keys: Keys) -> int:
    return int(keys["gconfig.n_samples"])


def _batch(value: JSON, keys: Keys) -> KeyOutcome:
    return becomes({"rollout.batch": value * _group_size(keys)}, "episodes: prompts times samples")


def _inflight(value: JSON, keys: Keys) -> KeyOutcome:
    episodes = value * _group_size(keys)
    return becomes({"rollout.max_inflight": episodes}, "episodes: prompts times samples")


def _schedule(value: JSON, keys: Keys) -> KeyOutcome:
    if value != "constant" and keys.get("total_train_steps") is None:
        return not_supported("the number of steps is open: set run.steps and trainer.schedule")
    return becomes({"trainer.schedule": value})


def _warmup(value: JSON, keys: Keys) -> KeyOutcome:
    steps = keys.get("total_train_steps")
    if not value or steps is not None:
        return becomes({"trainer.warmup_steps": round(value * (steps or 0))})
    return not_supported(
        "the number of steps is open: set trainer.warmup_steps (5 if it is not set)"
    )


def _same_model(value: JSON, keys: Keys) -> KeyOutcome:
    if value == keys.get("actor.path"):
        return not_applicable("it is that of the model")
    return not_supported("another model than actor.path: the trained model has its own tokenizer")


def _reference(value: JSON, keys: Keys) -> KeyOutcome:
    if value == keys.get("actor.path"):
        return not_applicable("the reference is the checkpoint that the run begins with")
    return not_supported("the reference is the checkpoint that the run begins with")


def _adapter(value: JSON, keys: Keys) -> KeyOutcome:
    """AReaL's adapter; its numbers are AReaL's where the file is silent."""
    if not value:
        return not_applicable(AS_HERE)
    targets = keys.get("actor.target_modules") or [ALL_LINEAR]
    return becomes(
        {
            "trainer.lora.rank": keys.get("actor.lora_rank", 32),
            "trainer.lora.alpha": keys.get("actor.lora_alpha", 16),
            **({} if ALL_LINEAR in targets else {"trainer.lora.targets": targets}),
        }
    )


def _copy_of(key: str) -> Rule:
    """A second place for the same number."""
    return lambda value, keys: (
        not_applicable(f"as {key}")
        if keys.get(key) in (None, value)
        else not_supported(f"differs from {key}, which counts")
    )


def _precision(value: JSON, _keys: Keys) -> KeyOutcome:
    if value in ("bfloat16", "float32"):
        return becomes({"trainer.precision": value})
    return not_supported("train in bfloat16 or float32 (trainer.precision)")


def _engine_dtype(value: JSON, _keys: Keys) -> KeyOutcome:
    if value in ("bfloat16", "float32", "auto"):
        return becomes({"engine.dtype": value})
    return not_supported("sample in bfloat16 or float32 (engine.dtype)")


def _dimensions(text: str) -> dict[str, int]:
    return {letter: int(number) for letter, number in re.findall(r"([a-z])(\d+)", text)}


def _servers(engine: str, layout: str) -> tuple[dict[str, JSON], list[str]]:
    size = _dimensions(layout)
    if engine != "sglang":
        return {}, [f"{engine} is no engine here: choose sglang or local"]
    settings = {"servers": size.pop("d", 1), "tp_size": size.pop("t", 1)}
    left = [f"{letter}{number} of the servers" for letter, number in size.items() if number > 1]
    named = {f"engine.sglang.{key}": value for key, value in settings.items()}
    return {"engine.name": "sglang", **named}, left


def _ranks(backend: str | None, layout: str) -> tuple[dict[str, JSON], list[str]]:
    size = _dimensions(layout)
    left = [] if backend in (None, "fsdp") else [f"{backend}: the trainer is FSDP2"]
    settings = {"trainer.ranks": size.pop("d", 1)}
    left += [f"{letter}{number} of the trainer" for letter, number in size.items() if number > 1]
    return settings, left


def _placed(settings: dict[str, JSON], left: list[str]) -> KeyOutcome:
    why = f"not supported: {'; '.join(left)}" if left else ""
    return becomes(settings, why) if settings else not_supported("; ".join(left))


def _allocation(value: JSON, _keys: Keys) -> KeyOutcome:
    found = LAYOUT.fullmatch(str(value))
    trainer = TRAINER.fullmatch(found["trainer"]) if found else None
    if found is None or trainer is None:
        return not_supported("set engine.sglang.servers, engine.sglang.tp_size and trainer.ranks")
    servers, left = _servers(found["engine"], found["servers"])
    ranks, more = _ranks(trainer["backend"], trainer["ranks"])
    return _placed({**servers, **ranks}, left + more)


def _rollout_backend(value: JSON, _keys: Keys) -> KeyOutcome:
    engine, _, layout = str(value).replace(":", ".").partition(".")
    return _placed(*_servers(engine, layout))


def _actor_backend(value: JSON, _keys: Keys) -> KeyOutcome:
    backend, _, layout = str(value).replace(":", ".").partition(".")
    if not layout:
        return only("fsdp", "the trainer is FSDP2", "the trainer is FSDP2")(value, _keys)
    return _placed(*_ranks(backend, layout))


def _agents(value: JSON, keys: Keys) -> KeyOutcome:
    if value == "inline":
        return not_applicable("agents run in the main process, or in rollout.workers")
    if value == "subproc":
        return becomes({"rollout.workers": keys.get("rollout.agent.subproc_max_workers", 4)})
    return not_supported("areal-sdk serve --learn trains on the sessions of callers")


def _judged_greedily(value: JSON, _keys: Keys) -> KeyOutcome:
    return becomes({"eval.temperature": 0.0}) if value else not_applicable(AS_HERE)


def _checkpoints(value: JSON, keys: Keys) -> KeyOutcome:
    if keys.get("saver.freq_steps") is not None:
        return not_applicable("as saver.freq_steps")
    return becomes({"run.checkpoint_every": value})


AS_HERE = "as it is here"
IN_STEPS = "areal-sdk counts steps: set {}"

RULES: Mapping[str, Rule] = {
    "experiment_name": _name,
    "trial_name": _name,
    "seed": to("run.seed"),
    "total_train_epochs": _epochs,
    "total_train_steps": to("run.steps"),
    "total_train_n_seqs": lambda _value, _keys: not_supported(IN_STEPS.format("run.steps")),
    "tokenizer_path": _same_model,
    "async_training": only(
        True, "training is asynchronous", "set rollout.max_staleness = 0, or run.deterministic"
    ),
    "allocation_mode": _allocation,
    "cluster.fileroot": to("run.dir"),
    "enable_offload": only(False, AS_HERE, "trainer and engine keep their memory"),
    "gconfig.n_samples": to("rollout.group_size"),
    "gconfig.max_new_tokens": to("rollout.max_new_tokens"),
    "gconfig.temperature": to("rollout.temperature"),
    "gconfig.max_tokens": to("engine.max_context"),
    "gconfig.min_new_tokens": only(0, AS_HERE, "an answer may end at once"),
    "gconfig.greedy": only(
        False, "training samples", "training samples (eval.temperature is apart)"
    ),
    "gconfig.top_p": only(
        1.0, "training samples from all tokens", "training samples from all tokens"
    ),
    "gconfig.top_k": lambda value, _keys: (
        not_applicable("training samples from all tokens")
        if value >= 10**6 or value < 0
        else not_supported("training samples from all tokens")
    ),
    "gconfig.frequency_penalty": only(0.0, AS_HERE, "training samples from the plain softmax"),
    "gconfig.stop": only([], AS_HERE, "the agent's client asks for stop strings"),
    "gconfig.stop_token_ids": only([], AS_HERE, "the agent's client asks for stop strings"),
    "rollout.max_head_offpolicyness": to("rollout.max_staleness"),
    "rollout.max_concurrent_rollouts": _inflight,
    "rollout.consumer_batch_size": _copy_of("train_dataset.batch_size"),
    "rollout.request_timeout": to("rollout.request_timeout_s", float),
    "rollout.request_retries": never(
        "a request is answered once, an episode is played again (rollout.infra_retries)"
    ),
    "rollout.queue_size": never("queues have the size that rollout.max_inflight needs"),
    "rollout.setup_timeout": never("a server that does not come up is named with its log"),
    "rollout.pause_grace_period": never("requests go on over an update of the weights"),
    "rollout.schedule_policy": never("requests of a session go where its prefix is cached"),
    "rollout.enable_rollout_tracing": never("every run records its episodes (areal-sdk inspect)"),
    "rollout.dump_to_file": never("every run records its episodes (areal-sdk inspect)"),
    "rollout.check_trajectory_format": never("trajectories are checked when they are made"),
    "rollout.backend": _rollout_backend,
    "rollout.agent.mode": _agents,
    "rollout.agent.subproc_max_workers": never("read with rollout.agent.mode"),
    "rollout.agent.export_style": never(
        "turns that continue one another are one sequence, and every sampled token is trained once"
    ),
    "rollout.agent.tool_call_parser": never("the chat template says it (gateway.tool_format)"),
    "rollout.agent.reasoning_parser": never("the chat template says it"),
    "rollout.agent.chat_template_type": never("what the model sampled is never rendered again"),
    "train_dataset.batch_size": _batch,
    "train_dataset.shuffle": to("rollout.shuffle"),
    "actor.path": to("model"),
    "actor.backend": _actor_backend,
    "actor.dtype": _precision,
    "actor.grad_reduce_dtype": only("float32", "gradients are float32", "gradients are float32"),
    "actor.optimizer.type": only("adam", "the optimiser is AdamW", "the optimiser is AdamW"),
    "actor.optimizer.lr": to("trainer.learning_rate"),
    "actor.optimizer.weight_decay": to("trainer.weight_decay"),
    "actor.optimizer.gradient_clipping": to("trainer.max_grad_norm"),
    "actor.optimizer.beta1": to("trainer.beta1"),
    "actor.optimizer.beta2": to("trainer.beta2"),
    "actor.optimizer.eps": to("trainer.epsilon"),
    "actor.optimizer.lr_scheduler_type": _schedule,
    "actor.optimizer.min_lr_ratio": to("trainer.schedule_end"),
    "actor.optimizer.warmup_steps_proportion": _warmup,
    "actor.optimizer.offload": only(False, AS_HERE, "the optimiser stays on the device"),
    "actor.mb_spec.max_tokens_per_mb": to("trainer.tokens_per_microbatch"),
    "actor.mb_spec.n_mbs": never("micro-batches are cut by tokens"),
    "actor.mb_spec.granularity": never("micro-batches are cut by tokens"),
    "actor.mb_spec.n_mbs_divisor": never("micro-batches are cut by tokens"),
    "actor.mb_spec.packing_algorithm": never("micro-batches are cut by tokens"),
    "actor.optimizer_dtype": only("float32", "moments are float32", "moments are float32"),
    "actor.pad_to_maximum": never("rows are not padded"),
    "actor.ppo_n_minibatches": to("trainer.num_minibatches"),
    "actor.gradient_checkpointing": to(
        "trainer.activation_checkpointing", lambda value: "full" if value else "none"
    ),
    "actor.disable_dropout": only(True, "nothing is dropped", "nothing is dropped"),
    "actor.init_from_scratch": only(
        False, AS_HERE, "give a checkpoint of random weights as the model"
    ),
    "actor.is_critic": only(False, AS_HERE, "the actor is no critic"),
    "actor.attn_impl": never("the trainer has an attention of its own, for shared prefixes"),
    "actor.weight_update_mode": never("engine.sglang.transport says how weights travel"),
    "actor.use_lora": _adapter,
    "actor.lora_rank": never("read with actor.use_lora"),
    "actor.lora_alpha": never("read with actor.use_lora"),
    "actor.target_modules": never("read with actor.use_lora"),
    "actor.peft_type": only("lora", AS_HERE, "adapters are LoRA's"),
    "actor.group_size": _copy_of("gconfig.n_samples"),
    "actor.temperature": _copy_of("gconfig.temperature"),
    "actor.max_new_tokens": _copy_of("gconfig.max_new_tokens"),
    "actor.dynamic_sampling": to("rollout.dynamic_sampling"),
    "actor.mask_no_eos_with_zero": only(
        False, AS_HERE, 'see rollout.truncated: "mask" and "drop" are near, neither pays 0'
    ),
    "actor.log_agent_stats": never("a run records what agents report (areal-sdk inspect)"),
    "actor.log_agent_stats_keys": never("a run records what agents report (areal-sdk inspect)"),
    "critic.path": _reference,
    "critic.ppo_n_minibatches": _copy_of("actor.ppo_n_minibatches"),
    "critic.dtype": _copy_of("actor.dtype"),
    "ref.path": _reference,
    "sglang.model_path": _copy_of("actor.path"),
    "sglang.dtype": _engine_dtype,
    "sglang.context_length": to("engine.max_context"),
    "sglang.mem_fraction_static": to("engine.sglang.memory_fraction"),
    "sglang.max_running_requests": to("engine.max_slots"),
    "sglang.random_seed": never("requests have seeds of their own"),
    "sglang.skip_tokenizer_init": never("the gateway tokenises"),
    "saver.freq_steps": to("run.checkpoint_every"),
    "saver.freq_epochs": lambda _value, _keys: not_supported(
        IN_STEPS.format("run.checkpoint_every")
    ),
    "saver.freq_secs": lambda _value, _keys: not_supported(IN_STEPS.format("run.checkpoint_every")),
    "recover.freq_steps": _checkpoints,
    "evaluator.freq_steps": to("eval.every"),
    "evaluator.eval_before_train": to("eval.before"),
    "eval_gconfig.n_samples": to("eval.samples"),
    "eval_gconfig.temperature": to("eval.temperature"),
    "eval_gconfig.greedy": _judged_greedily,
    "evaluator.freq_epochs": lambda _value, _keys: not_supported(IN_STEPS.format("eval.every")),
    "evaluator.freq_secs": lambda _value, _keys: not_supported(IN_STEPS.format("eval.every")),
}

OWN_PLACEMENT = "areal-sdk starts its processes itself, or torchrun or Ray do (cluster.launcher)"
OWN_RECORDS = "a run directory has all metrics and episodes (areal-sdk inspect)"
OWN_TASKS = "tasks come from the agent's tasks(split), or from --tasks and --eval-tasks"

PREFIXES: Mapping[str, str] = {
    "cluster.": OWN_PLACEMENT,
    "scheduler.": OWN_PLACEMENT,
    "launcher.": OWN_PLACEMENT,
    "stats_logger.": OWN_RECORDS,
    "perf_tracer.": OWN_RECORDS,
    "memory_profiler.": OWN_RECORDS,
    "recover.": "every checkpoint can be resumed (areal-sdk train --resume RUN)",
    "train_dataset.": OWN_TASKS,
    "valid_dataset.": OWN_TASKS,
    "critic.": "a critic is trained with the settings of the trainer",
    "ref.": "a reference is loaded where a KL needs one, with the settings of the trainer",
    "vllm.": "vLLM is no engine here",
}
"""Whole sections that have nothing to be translated to, apart from the rules above."""

SUFFIXES: Mapping[str, str] = {
    "experiment_name": "the run has one name (run.name)",
    "trial_name": "the run has one name (run.name)",
    "fileroot": "the run has one directory (run.dir)",
    "tokenizer_path": "it is that of the model",
    "scheduling_spec": OWN_PLACEMENT,
}


def outcome_of(key: str, value: Any, keys: Keys) -> KeyOutcome:
    """The outcome of a key that is not part of the objective."""
    if value is None:
        return not_applicable("not set")
    if isinstance(value, str) and "${" in value:
        return not_supported("only AReaL resolves this: write the value itself")
    if rule := RULES.get(key):
        return rule(value, keys)
    last = key.rpartition(".")[2]
    if why := SUFFIXES.get(last):
        return not_applicable(why)
    if why := next((why for prefix, why in PREFIXES.items() if key.startswith(prefix)), None):
        return not_applicable(why)
    if key.startswith("sglang."):
        flag = f"--{last.replace('_', '-')}"
        return not_supported(f"engine.sglang.arguments takes what SGLang calls {flag}")
    return not_supported("areal-sdk has no such setting, or does not know the key")
