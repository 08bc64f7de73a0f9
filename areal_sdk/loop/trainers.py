"""From `[trainer]` and `[algorithm]` to a trainer that is not started yet."""

from collections.abc import Callable
from pathlib import Path

from areal_sdk.config import Config
from areal_sdk.errors import ConfigError
from areal_sdk.launch import Launcher, LocalLauncher, TorchrunLauncher
from areal_sdk.loop.models import sampling_dtype
from areal_sdk.plugins import Plugins
from areal_sdk.process.listen import Listener
from areal_sdk.trainer.client import START_TIMEOUT_S, TrainerClient
from areal_sdk.trainer.options import TrainerOptions

COMPARE_SIBLINGS = ("grpo",)
"""The built-in algorithms that learn nothing from an episode without siblings."""


async def make_trainer(
    config: Config, model_dir: Path, *, plugins: Plugins, log_dir: Path, say: Callable[[str], None]
) -> TrainerClient:
    section, algorithm = config.trainer, config.algorithm
    options = TrainerOptions(
        model_dir=model_dir,
        precision=section.precision,
        device=section.device,
        num_ranks=section.ranks,
        threads=section.threads,
        seed=config.run.seed,
        learning_rate=section.learning_rate,
        warmup_steps=section.warmup_steps,
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        num_minibatches=section.num_minibatches,
        tokens_per_microbatch=section.tokens_per_microbatch,
        algorithm=plugins.algorithms.reference(algorithm.name),
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        max_weight=algorithm.max_weight,
        proximal=algorithm.proximal,
        discount=algorithm.discount,
        max_surprise=algorithm.max_surprise,
        share_prompts=section.share_prompts,
        sft_learning_rate=config.sft.learning_rate,
        deterministic=config.run.deterministic,
        publish_dtype=sampling_dtype(config, model_dir),
    )
    return TrainerClient(options, log_dir=log_dir, launcher=await _launcher(config, log_dir, say))


def check_learns(config: Config, *, learns_alone: bool | None = None) -> None:
    """ConfigError for an algorithm that compares siblings where episodes have none.

    `learns_alone` is what the trainer found; without it only the built-in algorithms are known.
    """
    if learns_alone is None:
        learns_alone = config.algorithm.name not in COMPARE_SIBLINGS
    if config.rollout.group_size > 1 or learns_alone:
        return
    name = config.algorithm.name
    if config.serve.learn:
        raise ConfigError(
            f"algorithm.name = {name!r} compares siblings, and callers come alone: choose "
            "running_baseline, or set rollout.group_size and open groups of that size "
            "(POST /control/sessions)"
        )
    raise ConfigError(
        f"algorithm.name = {name!r} compares the attempts at a task, and rollout.group_size = 1 "
        "makes one of each, so it would learn nothing: raise rollout.group_size, or choose "
        'algorithm.name = "running_baseline"'
    )


async def _launcher(config: Config, log_dir: Path, say: Callable[[str], None]) -> Launcher:
    """Ranks as our children, or those that the user starts with the line this says."""
    section = config.trainer
    if section.launcher == "local":
        return LocalLauncher(log_dir=log_dir, start_timeout_s=START_TIMEOUT_S)
    listener = await Listener.open(section.listen_host, section.listen_port)
    launcher = TorchrunLauncher(listener, start_timeout_s=START_TIMEOUT_S)
    say(f"start the {section.ranks} trainer ranks with: {launcher.command}")
    return launcher
