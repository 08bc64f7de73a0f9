"""The attacker's texts: AgentDojo's attacks by name, or templates."""

from collections.abc import Callable
from typing import Any

from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
from agentdojo.attacks import FixedJailbreakAttack, load_attack
from agentdojo.attacks.attack_registry import ATTACKS
from agentdojo.attacks.base_attacks import BaseAttack
from agentdojo.task_suite.task_suite import TaskSuite

from areal_sdk import ConfigError

NONE = "none"
"""The name for no attack."""
GOAL = "{goal}"

Attack = Callable[[Any, Any], dict[str, str]]
"""The texts for a user's task and an attacker's goal, by the place where each stands."""


def attack_names() -> list[str]:
    """Attacks that pursue a goal and ask nobody."""
    aimless = {name for name, attack in ATTACKS.items() if attack.is_dos_attack}
    return sorted(set(ATTACKS) - aimless - {"manual"})


def attack_on(suite: TaskSuite[Any], attack: str) -> Attack:
    """An attack of AgentDojo, or the template with `{goal}` in it, on the tasks of a suite."""
    write: Attack = _made(suite, attack).attack
    # The environments are YAML, in which a text is put before it is read. Not every template survives that.
    user_task, goal = (
        next(iter(suite.user_tasks.values())),
        next(iter(suite.injection_tasks.values())),
    )
    try:
        suite.load_and_inject_default_environment(write(user_task, goal))
    except Exception as error:
        raise ConfigError(
            f"attack {attack!r}: AgentDojo cannot put it into the suite {suite.name}: {error!r:.200}"
        ) from error
    return write


def _made(suite: TaskSuite[Any], attack: str) -> BaseAttack:
    target = GroundTruthPipeline(None)
    target.name = "local"  # AgentDojo's attacks call the model that they address a "Local model"
    if GOAL in attack:
        return FixedJailbreakAttack(attack, suite, target)
    if attack not in attack_names():
        raise ConfigError(
            f"attack {attack!r}: take {NONE!r}, a template with {GOAL} in it, or one of "
            f"{', '.join(attack_names())}"
        )
    return load_attack(attack, suite, target)
