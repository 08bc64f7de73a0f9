"""Rewards in environments of their own, for plugins whose packages this environment cannot have."""

import functools
import json
import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.plugins import Plugins
from areal_sdk.process.environments import environment_for, requirement_of
from areal_sdk.rollout.reward_worker import REGISTERED
from areal_sdk.rollout.rewards import RewardSpec

logger = logging.getLogger(__name__)

ISOLATED = "isolated"
"""The option of every reward, beside its weight: true, or what pip installs."""

_CHECK_S = 300.0
_CHECK = """
import json, sys
from areal_sdk.errors import ArealError
from areal_sdk.plugins import load_plugins, validate_options
name, options = json.loads(sys.argv[1])
try:
    reward = load_plugins().rewards.get(name)
    options = validate_options(reward, options, table=f"reward.{name}", skip=1)
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
    """The spec of a reward that another environment has. That is made now, if it was never made.

    `isolated` is a requirement for pip, or True: what is installed here under the reward's name.
    """
    if isolated is True:
        owners = plugins.rewards.owners(name)
        if len(owners) != 1:
            raise ConfigError(
                f"[reward.{name}] isolated = true: no installed plugin registers it: write the requirement, "
                'isolated = "my-plugin>=1"'
            )
        isolated = requirement_of(owners[0])
    if not isinstance(isolated, str) or not isolated:
        raise ConfigError(
            f"[reward.{name}] isolated = {isolated!r}: give true, false, or what pip installs"
        )
    python = environment_for(isolated, say=logger.warning)
    checked = _checked(python, name, json.dumps(dict(options)))
    return RewardSpec(name, f"{REGISTERED}{name}", weight, checked, python=str(python))


@functools.cache
def _checked(python: Path, name: str, options: str) -> Mapping[str, Any]:
    """The options, as the reward's own environment reads them."""
    order = json.dumps([name, json.loads(options)])
    words = [str(python), "-I", "-c", _CHECK, order]
    written = ""
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=_CHECK_S)
        written = ended.stderr.strip()[-500:]
        said = json.loads(ended.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as exc:
        raise ConfigError(
            f"reward {name!r}: its environment, {python}, does not work: {written or exc}: remove the "
            "directory, and it is made again"
        ) from None
    if "error" in said:
        raise ConfigError(f"in the environment of reward {name!r}: {said['error']}")
    found: Mapping[str, Any] = said["options"]
    return found
