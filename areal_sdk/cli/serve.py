"""`areal-sdk serve`: an OpenAI-compatible endpoint in front of the engine."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--model", help="A directory, a hub id, `smollm2`, `tiny`, or a run directory.")
@click.option("--engine", help="`local`, `sglang`, a plugin's, or addresses of running servers.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too.")
@click.option("--host", help="Default: 127.0.0.1.")
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--admin-key", envvar="AREAL_SDK_ADMIN_KEY", help="Default: made up at start-up.")
@click.option("--config", "file", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE")
def serve(file: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Serve a model to any OpenAI client, every sampled token recorded exactly.

    \b
    areal-sdk serve --model smollm2
    """
    from areal_sdk.config import load_config
    from areal_sdk.loop import serve_config

    keys = {
        "host": "gateway.host",
        "port": "gateway.port",
        "admin_key": "gateway.admin_key",
        "engine": "engine.name",
    }
    overrides = {keys.get(k, k): value for k, value in flags.items() if value not in (None, ())}
    serve_config(load_config(file=file, settings=settings, overrides=overrides), say=click.echo)
