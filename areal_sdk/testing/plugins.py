"""What installed plugins registered, as a run finds it."""

from typing import Any, Literal

from areal_sdk.plugins import load_plugins

Kind = Literal["reward", "env", "agent", "engine", "dataset"]
"""As in the settings: `[reward.NAME]`, `[env.NAME]`, `[engine.NAME]`."""


def registered(kind: Kind, name: str, /, **options: object) -> Any:
    """What an installed plugin registered as `name`, with its options checked and set.

    A reward, an agent or a dataset is ready to call; an environment is made by calling it; an engine
    is an instance. ConfigError, as a run would raise it, for a wrong name or option.

    >>> [task.id for task in registered("dataset", "nobody_brings_this")("train")]
    Traceback (most recent call last):
        ...
    areal_sdk.errors.ConfigError: unknown dataset 'nobody_brings_this'; ...
    """
    configured: Any = load_plugins().configure(kind, name, options)
    return configured
