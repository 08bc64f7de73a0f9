"""The gateway as `[gateway]` and `[serve]` describe it: its users, its limits, how its callers sample."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from areal_sdk.config import Config, Quota, RolloutSection, read_toml
from areal_sdk.engine import InferenceEngine
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.accounts.key_log import FollowedKeys
from areal_sdk.gateway.processes.membership import Membership
from areal_sdk.gateway.server import check_can_listen
from areal_sdk.gateway.sessions.external import ExternalLimits
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.plugins import Plugins
from areal_sdk.routes import Backend, BackendSettings, Route


def make_gateway(
    config: Config,
    engine: InferenceEngine,
    *,
    renderer: Renderer,
    sampling: SamplingPolicy,
    routes: Sequence[Route],
    run_dir: Path | None = None,
    users: Sequence[User] | None = None,
    membership: Membership | None = None,
) -> Gateway:
    """The gateway. `sampling` is for callers from outside; sessions of the run bring their own. `run_dir` gets the
    sessions of callers. `membership` and `users` are given to each of several gateway processes."""
    return Gateway(
        engine,
        renderer=renderer,
        model_name=config.model,
        sampling=sampling,
        admin_key=config.gateway.admin_key,
        max_request_s=config.rollout.request_timeout_s,
        users=read_users(config) if users is None else users,
        keys=follow_keys(config),
        quota=config.serve,
        external=live_limits(config),
        cors_origins=config.serve.cors_origins,
        unknown_fields=config.gateway.unknown_fields,
        membership=membership,
        routes=routes,
        run_dir=run_dir,
        model_names=config.serve.models,
    )


def routes_of(plugins: Plugins) -> list[Route]:
    """The routes that packages add to each gateway of a model."""
    return [plugins.routes.get(name) for name in plugins.routes.names()]


ADDRESS_BACKEND = "upstream"
"""The backend for an address of a provider."""


def make_backend(upstream: str, *, plugins: Plugins, api_key: str, max_request_s: float) -> Backend:
    """The backend that `serve.upstream` names, or the one for addresses. ConfigError if there is no such backend."""
    name = upstream if upstream in plugins.backends else ADDRESS_BACKEND
    return plugins.backends.get(name)(BackendSettings(upstream, api_key, max_request_s))


def callers_sampling(config: Config) -> SamplingPolicy:
    """The sampling of callers' turns. The run decides if it learns from them, else the callers do."""
    if config.serve.learn:
        return rollout_sampling(config.rollout)
    return SamplingPolicy(mode="respect", temperature=config.rollout.temperature)


def rollout_sampling(rollout: RolloutSection) -> SamplingPolicy:
    """The sampling of turns in training episodes, and which of them are trained."""
    return SamplingPolicy(
        mode=rollout.sampling,
        temperature=rollout.temperature,
        trains_side_calls=rollout.side_calls == "train",
    )


def live_limits(config: Config) -> ExternalLimits:
    """The limits of a caller's session: while learning, those of an episode."""
    serve, rollout = config.serve, config.rollout
    limits, group_size = SessionLimits(), None
    if serve.learn:
        group_size = rollout.group_size if rollout.group_size > 1 else None
        limits = SessionLimits(
            max_turns=rollout.max_turns,
            max_tokens=rollout.max_episode_tokens,
            max_new_tokens=rollout.max_new_tokens,
        )
    keeps_rewards = serve.learn or serve.record or serve.upstream is not None
    return ExternalLimits(serve.idle_s, serve.reward_wait_s, limits, group_size, keeps_rewards)


def check_serves(config: Config) -> None:
    """Raise ConfigError if a server cannot listen at the address of `[gateway]`, or knows no callers."""
    gateway = config.gateway
    read_users(config)
    follow_keys(config)
    check_can_listen(gateway.host, gateway.port, has_given_key=gateway.admin_key is not None)


QUOTAS = set(Quota.model_fields)


class UserSection(Quota):
    """One user of a users file. Missing quotas are those of the server."""

    api_key: Annotated[str, Field(repr=False)] = ""


def follow_keys(config: Config) -> FollowedKeys | None:
    """The keys that are made and revoked while the server runs."""
    return None if config.serve.keys is None else FollowedKeys(config.serve.keys)


def read_users(config: Config) -> list[User]:
    """The users of `serve.users`. Missing quotas are those of the server."""
    path = config.serve.users
    if path is None:
        return []
    users = []
    for name, table in read_toml(path).items():
        try:
            user = UserSection.model_validate(table)
        except ValidationError as exc:
            raise ConfigError(f"{path}: [{name}] {_problem(exc)}") from None
        given = user.model_dump(include=QUOTAS, exclude_unset=True)
        quota = Quota(**{**config.serve.model_dump(include=QUOTAS), **given})
        if not user.api_key and config.serve.keys is None:
            raise ConfigError(f"{path}: [{name}] has no api_key: give it one, or set serve.keys")
        users.append(User(name, user.api_key, quota))
    if not users:
        raise ConfigError(f'{path}: no users: write [NAME] and below it api_key = "..."')
    return users


def _problem(error: ValidationError) -> str:
    """The first problem without values, because one of the values is a key."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "is no table"
    known = ", ".join(UserSection.model_fields)
    return f"{where}: {first['msg']}; a user has {known}"
