"""Rewards and environments in virtual environments of their own, for plugins whose packages cannot be installed in
this one."""

import functools
import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.plugins import Plugins
from areal_sdk.process.environments import environment_for, requirement_of
from areal_sdk.process.user_code import REGISTERED
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.judging.reward_pool import RewardSpec

logger = logging.getLogger(__name__)

ISOLATED = "isolated"
"""The option of every reward and every environment: true, or the requirement that pip installs."""

_CHECK_S = 300.0
"""Seconds for a plugin's own environment to read its options: the first import there compiles all it needs."""
_CHECK = """
import json, sys
from areal_sdk.errors import ArealError
from areal_sdk.plugins import load_plugins, validate_options
kind, name, options = json.loads(sys.argv[1])
try:
    plugins = load_plugins()
    found = (plugins.rewards if kind == "reward" else plugins.environments).get(name)
    options = validate_options(found, options, table=f"{kind}.{name}", skip=int(kind == "reward"))
    print(json.dumps({"options": options}))
except ArealError as exc:
    print(json.dumps({"error": str(exc)}))
"""


def isolated_reward(
    name: str,
    isolated: object,
    options: Mapping[str, Any],
    plugins: Plugins,
    *,
    weight: float,
) -> RewardSpec:
    """The spec of a reward in another environment, which is made now if needed. `isolated` is a requirement for pip,
    or True: the version of the reward's package that is installed here."""
    python = _python_for("reward", name, isolated, plugins.rewards.owners(name))
    checked = _checked(python, "reward", name, json.dumps(dict(options)))
    return RewardSpec(name, f"{REGISTERED}{name}", weight, checked, python=str(python))


def isolated_environment(
    name: str,
    isolated: object,
    options: Mapping[str, Any],
    plugins: Plugins,
    *,
    step_timeout_s: float,
) -> AgentSpec:
    """The spec of an environment in another virtual environment. `isolated` is the same as for rewards. Workers there
    play whole episodes, and only the model's answers come from this process."""
    python = _python_for("env", name, isolated, plugins.environments.owners(name))
    checked = _checked(python, "env", name, json.dumps(dict(options)))
    return AgentSpec(
        name, f"{REGISTERED}{name}", checked, f"env.{name}", step_timeout_s, str(python)
    )


def _python_for(kind: str, name: str, isolated: object, owners: Sequence[str]) -> Path:
    """The Python of the virtual environment, which is made now if needed."""
    if isolated is True:
        if len(owners) != 1:
            raise ConfigError(
                f"[{kind}.{name}] isolated = true: no installed plugin registers it: write the requirement, "
                'isolated = "my-plugin>=1"'
            )
        isolated = requirement_of(owners[0])
    if not isinstance(isolated, str) or not isolated:
        raise ConfigError(
            f"[{kind}.{name}] isolated = {isolated!r}: give true, false, or what pip installs"
        )
    return environment_for(isolated, say=logger.warning)


@functools.cache
def _checked(python: Path, kind: str, name: str, options: str) -> Mapping[str, Any]:
    """The options, as the plugin's own environment reads them."""
    order = json.dumps([kind, name, json.loads(options)])
    what = f"{'environment' if kind == 'env' else kind} {name!r}"
    words = [str(python), "-I", "-c", _CHECK, order]
    written = ""
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=_CHECK_S)
        written = ended.stderr.strip()[-500:]
        said = json.loads(ended.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as exc:
        raise ConfigError(
            f"{what}: its virtual environment, {python}, does not work: {written or exc}: remove the "
            "directory, and it is made again"
        ) from None
    if "error" in said:
        raise ConfigError(f"in the virtual environment of {what}: {said['error']}")
    found: Mapping[str, Any] = said["options"]
    return found
