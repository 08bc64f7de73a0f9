"""AReaL's defaults that differ from those of areal-sdk, for settings that a file leaves out.

The values are those of AReaL 1.0.4 (`areal/api/cli_args.py`).
"""

from collections.abc import Mapping

from areal_sdk_from_areal.outcome import JSON, Keys
from areal_sdk_from_areal.weights import REJECTION, bounds_weights

ALWAYS: Mapping[str, JSON] = {
    "seed": 1,
    "total_train_epochs": 1,
    "gconfig.n_samples": 1,
    "gconfig.max_new_tokens": 16384,
    "gconfig.temperature": 1.0,
    "rollout.max_head_offpolicyness": 0,
    "rollout.request_timeout": 3600.0,
    "train_dataset.batch_size": 1,
    "actor.eps_clip": 0.2,
    "actor.reward_scaling": 1.0,
    "actor.reward_bias": 0.0,
    "actor.reward_clip": 20.0,
    "actor.kl_ctl": 0.1,
    "actor.ppo_n_minibatches": 4,
}

OF_TABLES: Mapping[str, Mapping[str, JSON]] = {
    "actor.optimizer": {"lr": 1e-3, "weight_decay": 0.01, "warmup_steps_proportion": 0.001},
    "critic.optimizer": {"lr": 1e-3},
    REJECTION: {"level": "token", "action": "mask", "upper": 5.0},
}
"""Defaults of tables that the file has: without `actor.optimizer`, for example, AReaL trains
nothing."""

LONGEST_ANSWER = 1024
"""`actor.max_new_tokens`, which the overlong penalty reads."""


def completed(given: Keys) -> dict[str, JSON]:
    """The keys of a file, and after them the defaults of those that it lacks."""
    defaults = dict(ALWAYS)
    for table, values in OF_TABLES.items():
        if given.get(table) == {} or any(key.startswith(f"{table}.") for key in given):
            defaults |= {f"{table}.{name}": value for name, value in values.items()}
    if not bounds_weights(given):
        defaults[REJECTION] = None
    keys = {**given, **{key: value for key, value in defaults.items() if key not in given}}
    at_once = "rollout.max_concurrent_rollouts"
    if keys.get(at_once) is None and "rollout.consumer_batch_size" in keys:
        keys[at_once] = keys["rollout.consumer_batch_size"]
    return keys
