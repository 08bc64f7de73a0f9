"""The built-in plugin. It uses the same hooks as any other plugin."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from areal_sdk.agent import AgentLike
from areal_sdk.engine import InferenceEngine
from areal_sdk.hookspecs import Register, hookimpl
from areal_sdk.reward import RewardFn
from areal_sdk.trainer import Trainer

if TYPE_CHECKING:
    from areal_sdk.launcher import OpenLauncher
    from areal_sdk.tool_calls import ToolFormat

_REWARDS = ("exact_match", "contains_answer", "numeric_match")

ALGORITHMS = {
    "grpo": "grpo",
    "ppo": "ppo",
    "drgrpo": "drgrpo",
    "dapo": "dapo",
    "gspo": "gspo",
    "rloo": "rloo",
    "reinforce++": "reinforce_plus_plus",
    "reinforce++_baseline": "reinforce_plus_plus_baseline",
    "sapo": "sapo",
    "cispo": "cispo",
    "m2po": "m2po",
    "litepo": "litepo",
    "naive_ppo": "naive_ppo",
    "areal": "areal",
    "running_baseline": "running_baseline",
}
"""The names that users write, and the presets that they name."""

TOOL_FORMATS = {
    "glm": "native:GLM",
    "qwen_coder": "native:QWEN_CODER",
    "deepseek": "native:DEEPSEEK",
    "mistral": "native:MISTRAL",
    "hermes": "native:HERMES",
    "llama": "native:LLAMA",
    "plain": "plain:PLAIN",
}
"""The tool-call formats in the order in which a chat template is matched with them."""


@hookimpl
def register_rewards(register: Register[RewardFn]) -> None:
    for name in _REWARDS:
        register(name, f"areal_sdk.builtin.rewards:{name}")
    register("model", "areal_sdk.builtin.reward_model:model")


@hookimpl
def register_agents(register: "Register[AgentLike | type]") -> None:
    register("chat", "areal_sdk.builtin.chat:Chat")


@hookimpl
def register_algorithms(register: Register[Callable[..., object]]) -> None:
    for name, preset in ALGORITHMS.items():
        register(name, f"areal_sdk.algorithms.presets:{preset}")


@hookimpl
def register_tool_formats(register: "Register[ToolFormat]") -> None:
    for name, where in TOOL_FORMATS.items():
        register(name, f"areal_sdk.gateway.tool_calls.{where}")


@hookimpl
def register_engines(register: Register[type[InferenceEngine]]) -> None:
    register("local", "areal_sdk.backends.local:LocalEngine")


@hookimpl
def register_launchers(register: "Register[OpenLauncher]") -> None:
    register("local", "areal_sdk.launch.local:open_local")
    register("torchrun", "areal_sdk.launch.torchrun:open_torchrun")


@hookimpl
def register_trainers(register: Register[Callable[..., Trainer]]) -> None:
    register("fsdp", "areal_sdk.fsdp.trainer:make_trainer")
