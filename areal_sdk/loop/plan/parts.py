"""The parts that settings name: engine, trainer, algorithm and rewards, found and made, not started."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from areal_sdk.algorithms.algorithm import make_algorithm
from areal_sdk.config import Config, EngineSection, PolicySection, Section, TrainerSection
from areal_sdk.engine import ConfiguredEngine, EngineSettings, InferenceEngine
from areal_sdk.errors import ConfigError
from areal_sdk.launcher import Launcher
from areal_sdk.loop.plan.isolated import ISOLATED, isolated_reward
from areal_sdk.models.families import stored_dtype
from areal_sdk.plugins import Plugins, load_plugins, validate_options
from areal_sdk.rollout.judging.reward_pool import RewardSpec
from areal_sdk.trainer import IdleGroups, Learning, PresetSpec, Trainer, TrainerSetup

logger = logging.getLogger(__name__)


def load_plugins_of(config: Config) -> Plugins:
    """The installed plugins, and those in the files that `plugins` names."""
    return load_plugins(files=map(Path, config.plugins))


def make_observers(config: Config, plugins: Plugins) -> None:
    """Make the observers that the settings name. ConfigError if one of them could not observe."""
    for name in config.observers:
        plugins.observe(name, config.options.get(f"observer.{name}", {}))


POLICIES = "policies"
"""Name of the engine and of the trainer for several policies: each holds one of the chosen kind for every policy."""


def engine_tables(config: Config, plugins: Plugins) -> dict[str, type[Section]]:
    """The table of options that the chosen engine describes, under its name."""
    name = config.engine.kind
    engine = plugins.engines.get(name) if name in plugins.engines else None
    if engine is None or not issubclass(engine, ConfiguredEngine) or engine.table is None:
        return {}
    return {f"engine.{name}": engine.table}


def engine_class(config: Config, plugins: Plugins) -> type[InferenceEngine]:
    """The class that `engine.name` means; for several policies, the class that holds one such engine for each."""
    if config.policy:
        return plugins.engines.get(POLICIES)
    return plugins.engines.get(config.engine.kind)


def make_engine(
    config: Config,
    model_dir: Path,
    *,
    plugins: Plugins,
    log_dir: Path,
    launcher: Launcher | None = None,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> InferenceEngine:
    """The engine that `engine.name` means, not started."""
    section, engine = config.engine, engine_class(config, plugins)
    if config.run.deterministic and not engine.is_repeatable:
        raise ConfigError(
            f"run.deterministic needs an engine that samples the same tokens twice, such as "
            f"{EngineSection().name!r}: {section.name!r} does not"
        )
    _check_shareable(config, engine)
    options = config.options.get(f"engine.{section.kind}", {})
    if issubclass(engine, ConfiguredEngine):
        return engine.from_settings(
            EngineSettings(
                section,
                options,
                model_dir,
                log_dir,
                config.run.deterministic,
                launcher,
                is_placed=config.cluster.places,
                find=plugins.engines.get,
                policies=_found_policies(config),
                environments=environments or {},
            )
        )
    arguments = {"model_dir": model_dir, "log_dir": log_dir, **options}
    return plugins.configure("engine", section.kind, arguments)


def _found_policies(config: Config) -> dict[str, PolicySection]:
    """The policies. Each frozen one has the directory of its weights, or an address, in place of a name."""
    from areal_sdk.loop.plan.models import find_model  # which asks this module for trainers

    return {
        name: policy
        if policy.frozen is None or "://" in policy.frozen
        else policy.model_copy(update={"frozen": str(find_model(policy.frozen).absolute())})
        for name, policy in config.policy.items()
    }


def check_engine(config: Config, plugins: Plugins) -> None:
    """Raise ConfigError if no plugin has the engine, or if it would ignore a setting."""
    name = config.engine.kind
    plugins.engines.reference(name)
    _check_shareable(config, engine_class(config, plugins))
    ignored = config.engine.model_fields_set - {"name"}
    default = EngineSection()
    stored = {key for key in ignored if getattr(config.engine, key) == getattr(default, key)}
    if ignored == stored or issubclass(engine_class(config, plugins), ConfiguredEngine):
        return
    keys = ", ".join(f"engine.{field}" for field in sorted(ignored - stored))
    raise ConfigError(
        f"{keys} would be ignored: the engine {name!r} is a plugin's, and has options of its own, "
        f"[engine.{name}]"
    )


def _check_shareable(config: Config, engine: type[InferenceEngine]) -> None:
    """Raise ConfigError if rollout nodes or gateway processes could not sample from the engine."""
    shared = {"rollout.nodes": config.rollout.nodes, "serve.processes": config.serve.processes}
    for key, number in shared.items():
        if number > 1 and not engine.is_shareable:
            raise ConfigError(
                f"{key} = {number} needs an engine that several processes sample from, such "
                f"as {EngineSection().name!r}: {config.engine.name!r} has no entrance for them"
            )


def check_engine_serves(config: Config, model_dir: Path, plugins: Plugins) -> None:
    """Raise ConfigError if the engine could not serve the model, or not with these settings."""
    engine = engine_class(config, plugins)
    engine.check_model(model_dir)
    if issubclass(engine, ConfiguredEngine):
        make_engine(config, model_dir, plugins=plugins, log_dir=Path())


def sampling_dtype(config: Config, model_dir: Path) -> str:
    """The dtype that the engine samples with, which is the dtype of exported weights."""
    return stored_dtype(model_dir) if config.engine.dtype == "auto" else config.engine.dtype


def reward_specs(config: Config, plugins: Plugins) -> list[RewardSpec]:
    """The configured rewards, found and with their options checked."""
    specs = []
    for name, weight in config.rewards.items():
        table = f"reward.{name}"
        given = dict(config.options.get(table, {}))
        if isolated := given.pop(ISOLATED, False):
            specs.append(isolated_reward(name, isolated, given, plugins, weight=weight))
            continue
        reward = plugins.rewards.get(name)
        options = validate_options(reward, given, table=table, skip=1)
        specs.append(RewardSpec.of(name, reward, weight=weight, options=options))
    return specs


@dataclass(frozen=True, slots=True)
class ChosenAlgorithm:
    """The algorithm that `algorithm.name` names, found and checked."""

    preset: PresetSpec
    reads_reference: bool = False
    """Whether the algorithm compares with the weights that the run began with."""


def choose_algorithm(config: Config, plugins: Plugins) -> ChosenAlgorithm:
    """The algorithm. ConfigError if its parts do not go together, or if it could not learn. A plugin's trainer may
    read another kind of preset, which it checks itself."""
    chosen = ChosenAlgorithm(find_preset(config, plugins))
    if not has_own_trainer(config):
        return chosen
    name = config.algorithm.name
    algorithm = make_algorithm(name, plugins.algorithms.get(name), chosen.preset.options)
    check_learns(config, learns_alone=algorithm.learns_alone)
    if warning := dynamic_sampling_warning(config, algorithm.idle_groups):
        logger.warning("%s", warning)
    reads_reference = algorithm.needs.reference
    if reads_reference and config.sft.steps:
        raise ConfigError(
            f"sft.steps = {config.sft.steps} moves the policy away from the checkpoint that the KL "
            f"of algorithm {name!r} pulls it back to: warm up in a run of its own (areal-sdk sft, "
            "then --init-from here), or leave the KL out"
        )
    return replace(chosen, reads_reference=reads_reference)


def find_preset(config: Config, plugins: Plugins) -> PresetSpec:
    """The preset that `algorithm.name` names, with the options of its table checked."""
    name = config.algorithm.name
    options = config.options.get(f"algorithm.{name}", {})
    validate_options(plugins.algorithms.get(name), options, table=f"algorithm.{name}")
    return PresetSpec(plugins.algorithms.reference(name), options, name)


def has_own_trainer(config: Config) -> bool:
    """Whether the run trains with the built-in trainer, and not with a plugin's."""
    return config.trainer.name == TrainerSection().name


def make_trainer(
    config: Config,
    model_dir: Path,
    *,
    plugins: Plugins,
    preset: PresetSpec,
    log_dir: Path,
    say: Callable[[str], None],
    launcher: Launcher | None = None,
    only_exports: bool = False,
    dtype: str | None = None,
) -> Trainer:
    """The trainer that `trainer.name` names, not started; it exports weights as `dtype`."""
    name = config.trainer.name
    make = plugins.configure("trainer", name, config.options.get(f"trainer.{name}", {}))
    chosen = plugins.trainers.get(POLICIES) if config.policy else make
    return chosen(
        TrainerSetup(
            model_dir,
            config.trainer,
            config.run,
            preset=preset,
            publish_dtype=dtype or sampling_dtype(config, model_dir),
            log_dir=log_dir,
            say=say,
            learning=_LEARNING.get(config.finetune.objective, Learning.DATA),
            launcher=launcher,
            engine_accepts=engine_class(config, plugins).accepts,
            policies=config.policy,
            make=make,
            only_exports=only_exports,
        )
    )


_LEARNING = {None: Learning.EPISODES, "reward_model": Learning.REWARDS}
"""The source from which a trainer learns, by `finetune.objective`. Other objectives learn from data."""


def dynamic_sampling_warning(config: Config, idle_groups: IdleGroups) -> str | None:
    """A line for the user if dynamic sampling has nothing to replace."""
    if not config.rollout.dynamic_sampling or idle_groups is not IdleGroups.NONE:
        return None
    name = config.algorithm.name
    return f"rollout.dynamic_sampling = True changes nothing: every group teaches {name!r}"


def check_learns(config: Config, *, learns_alone: bool) -> None:
    """Raise ConfigError if the algorithm compares siblings and episodes have none."""
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
