"""From `[gateway]` and `[serve]` to a gateway that does not listen yet."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from areal_sdk.config import Config, Positive, RolloutSection, Section, read_toml
from areal_sdk.engine import InferenceEngine
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits
from areal_sdk.gateway.accounts import Quota, User
from areal_sdk.gateway.live import LiveLimits


def make_gateway(
    config: Config, engine: InferenceEngine, *, model_dir: Path, sampling: SamplingPolicy
) -> Gateway:
    """`sampling` is for callers from outside; a run gives its own sessions theirs."""
    return Gateway(
        engine,
        model_dir=model_dir,
        model_name=config.model,
        sampling=sampling,
        admin_key=config.gateway.admin_key,
        max_request_s=config.rollout.request_timeout_s,
        tool_format=config.gateway.tool_format,
        users=read_users(config),
        quota=quota_of(config),
        live=live_limits(config),
        cors_origins=config.serve.cors_origins,
        unknown_fields=config.gateway.unknown_fields,
    )


def live_limits(config: Config) -> LiveLimits:
    """What bounds a caller's session: while learning, what bounds an episode."""
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
    return LiveLimits(serve.idle_s, serve.reward_wait_s, limits, group_size, keeps_rewards)


def quota_of(config: Config) -> Quota:
    serve = config.serve
    return Quota(
        serve.requests_per_minute, serve.tokens_per_minute, serve.max_running, serve.max_sessions
    )


class UserSection(Section):
    """One user of a users file."""

    api_key: Annotated[str, Field(repr=False)]
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_running: Positive | None = None
    max_sessions: Positive | None = None


def read_users(config: Config) -> list[User]:
    """The users of `serve.users`; a quota that a user has not is the server's."""
    path = config.serve.users
    if path is None:
        return []
    common = quota_of(config)
    users = []
    for name, table in read_toml(path).items():
        try:
            user = UserSection.model_validate(table)
        except ValidationError as exc:
            raise ConfigError(f"{path}: [{name}] {_problem(exc)}") from None
        quota = Quota(
            user.requests_per_minute or common.requests_per_minute,
            user.tokens_per_minute or common.tokens_per_minute,
            user.max_running or common.max_running,
            user.max_sessions or common.max_sessions,
        )
        users.append(User(name, user.api_key, quota))
    if not users:
        raise ConfigError(f'{path}: no users: write [NAME] and below it api_key = "..."')
    return users


def _problem(error: ValidationError) -> str:
    """The first problem, without the values: one of them is a key."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "is no table"
    known = ", ".join(UserSection.model_fields)
    return f"{where}: {first['msg']}; a user has {known}"


def rollout_sampling(rollout: RolloutSection) -> SamplingPolicy:
    """How the turns of training episodes are sampled, and which of them are trained."""
    return SamplingPolicy(
        mode=rollout.sampling,
        temperature=rollout.temperature,
        trains_side_calls=rollout.side_calls == "train",
    )
