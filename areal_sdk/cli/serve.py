"""`areal-sdk serve`: an OpenAI-compatible endpoint in front of the engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from areal_sdk.command import PlayingCommand, key_option, setting_options

if TYPE_CHECKING:
    from areal_sdk.config import Config
    from areal_sdk.loop.learning.state import RunSummary

DEFAULT_PORT = 8000
"""The default port of `serve`. It is fixed, since clients keep the address; `train` takes any port."""


@click.command(cls=PlayingCommand)
@click.option("--model", help="A directory, a hub id, `smollm2`, `tiny`, or a run directory.")
@click.option("--engine", help="`local`, `sglang`, a plugin's, or addresses of running servers.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too.")
@click.option("--host", help="Address to listen on; default: 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; default: 8000.")
@click.option("--processes", type=int, help="Gateway processes that share the address; default: 1.")
@click.option(
    "--admin-key",
    envvar="AREAL_SDK_ADMIN_KEY",
    callback=key_option,
    help="Key of the server, better given as AREAL_SDK_ADMIN_KEY; default: made up at start-up.",
)
@click.option(
    "--learn",
    is_flag=True,
    help="Train on the sessions of callers, with the rewards that they post.",
)
@click.option("--record", is_flag=True, help="Keep every session in a run directory.")
@click.option(
    "--upstream", metavar="URL", help="Pass calls on to this provider, and keep their text."
)
@click.option("--users", metavar="FILE", help="A TOML file of users: their keys and quotas.")
@click.option("--keys", metavar="FILE", help="A file of keys that `areal-sdk keys` changes.")
@click.option("--cors", "cors_origins", multiple=True, help="An origin whose web pages may call.")
@click.option("--steps", type=int, help="With --learn: end after this many optimiser steps.")
@click.option("--resume", metavar="RUN", help="Continue this run, and learn.")
@setting_options
def serve(
    file: Path | None,
    settings: tuple[str, ...],
    resume: str | None,
    learn: bool,
    record: bool,
    **flags: Any,
) -> None:
    """Serve a model to any OpenAI client, every sampled token recorded exactly.

    \b
    areal-sdk serve --model smollm2
    areal-sdk serve --model smollm2 --learn --users users.toml
    areal-sdk serve --resume runs/serve-20261121-101500
    """
    from areal_sdk.cli.summary import print_summary
    from areal_sdk.config import load_config
    from areal_sdk.errors import ConfigError
    from areal_sdk.loop import resume_training, serve_config

    overrides = {_KEYS.get(k, k): value for k, value in flags.items() if value not in (None, ())}
    if learn:
        overrides["serve.learn"] = True
    if record:
        overrides["serve.record"] = True
    if resume is not None:
        if file is not None:
            raise ConfigError(
                "--resume takes its settings from the run: leave out --config, use --set"
            )
        summary: RunSummary | None = resume_training(resume, settings=settings, overrides=overrides)
    else:
        config = load_config(file=file, settings=settings, overrides=overrides)
        if flags["steps"] is not None and not config.serve.learn:
            raise ConfigError("--steps ends learning, and this server does not learn: add --learn")
        config = with_port(config)
        summary = serve_config(config, say=click.echo)
    if summary is not None:
        print_summary(summary)


def with_port(config: "Config") -> "Config":
    """`config` with the default port of `serve`, unless a flag, `--set` or a file sets one."""
    gateway = config.gateway
    if "port" in gateway.model_fields_set:
        return config
    gateway = gateway.model_copy(update={"port": DEFAULT_PORT})
    return config.model_copy(update={"gateway": gateway})


_KEYS = {
    "host": "gateway.host",
    "port": "gateway.port",
    "admin_key": "gateway.admin_key",
    "engine": "engine.name",
    "processes": "serve.processes",
    "upstream": "serve.upstream",
    "users": "serve.users",
    "keys": "serve.keys",
    "cors_origins": "serve.cors_origins",
    "steps": "run.steps",
}
