"""`areal-sdk eval`: how often an agent succeeds, with confidence intervals."""

import shlex
from pathlib import Path
from typing import Any

import click

from areal_sdk.command import (
    PlayingCommand,
    given_settings,
    key_option,
    player_options,
    setting_options,
    task_options,
)


@click.command(name="eval", cls=PlayingCommand)
@click.argument("agent", required=False)
@click.option("--model", help="A directory, a hub id, `smollm2`, `tiny`, or a run directory.")
@click.option("--base-url", help="Any OpenAI-compatible endpoint instead of a local model.")
@click.option(
    "--api-key",
    envvar="OPENAI_API_KEY",
    callback=key_option,
    help="API key for --base-url, better given as OPENAI_API_KEY.",
)
@task_options
@click.option("--split", default="eval", show_default=True, help="The split of the tasks.")
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    help="A reward's name, or NAME=WEIGHT; not with --base-url.",
)
@player_options
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Load this plugin too.")
@click.option("--samples", type=int, help="Attempts at each task (for pass@k).")
@click.option(
    "--num-tasks", type=int, help="Maximum number of tasks; a sample is drawn with run.seed."
)
@click.option(
    "--temperature",
    type=float,
    help="Temperature of sampling; default: 0 for one sample, 1 for several. Not with --base-url.",
)
@click.option(
    "--compare", metavar="RUN", help="Also evaluate RUN's best weights: before and after."
)
@setting_options
@click.option("--record", is_flag=True, help="Keep the episodes in a run directory, for `inspect`.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate(
    agent: str | None,
    base_url: str | None,
    api_key: str | None,
    split: str,
    compare: str | None,
    file: Path | None,
    settings: tuple[str, ...],
    record: bool,
    as_json: bool,
    rewards: tuple[str, ...],
    plugins: tuple[str, ...],
    **flags: Any,
) -> None:
    """Evaluate AGENT on held-out tasks. Exits with 1 when not one attempt could be scored.

    \b
    areal-sdk eval my_agent.py --model smollm2 --samples 4
    areal-sdk eval my_agent.py --model runs/MyAgent-20261121-101500
    areal-sdk eval my_agent.py --base-url https://api.example.com/v1 --model some-model
    """
    import orjson

    from areal_sdk.cli.summary import print_reports
    from areal_sdk.config import load_config
    from areal_sdk.loop import evaluate_config
    from areal_sdk.loop.plan.models import find_model

    _check_endpoint(base_url, flags.get("temperature"), rewards)
    config = load_config(
        file=file, settings=settings, overrides=given_settings(agent, rewards, plugins, flags)
    )
    of_run = [setting for setting in settings if setting.strip().startswith("run.")]
    if config.run.name != (own := load_config(settings=of_run).run.name):
        # The file names a run, which this is not: that run could not begin any more.
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": own})})
    if compare is not None:
        find_model(compare)  # before the minutes that the first half takes
    reports = {}
    reports[config.model] = evaluate_config(
        config, split=split, base_url=base_url, api_key=api_key, record=record, quiet=as_json
    )
    if compare is not None:
        after = config.model_copy(update={"model": compare})
        reports[compare] = evaluate_config(after, split=split, record=record, quiet=as_json)
    if as_json:
        data = {name: report.metrics() for name, report in reports.items()}
        click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())
    else:
        print_reports(reports)
    for report in reports.values():
        if report.run_dir:
            path = shlex.quote(report.run_dir)
            click.echo(f"its episodes: areal-sdk inspect {path} --worst 5", err=as_json)
    if any(report.num_scored == 0 for report in reports.values()):
        raise SystemExit(1)


def _check_endpoint(
    base_url: str | None, temperature: float | None, rewards: tuple[str, ...]
) -> None:
    """Raise ConfigError for options that an endpoint of others does not support."""
    from areal_sdk.errors import ConfigError

    if base_url is None:
        return
    if temperature is not None:
        raise ConfigError(
            "--temperature is for models we serve: with --base-url the temperature is that of the agent's "
            "requests, else the endpoint's default"
        )
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"--base-url {base_url!r}: write http://HOST:PORT/v1")
    if rewards:
        raise ConfigError(
            "--reward with --base-url: another endpoint records no turns, so rewards have nothing "
            "to look at: let the agent return its own verdict"
        )
