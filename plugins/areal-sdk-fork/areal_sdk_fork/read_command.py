"""`areal-sdk reread`: the tokens of an episode again, under other weights."""

import shlex
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from areal_sdk import Run
    from areal_sdk_fork.reading import Change, Reading


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("episode")
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Weights: a checkpoint of the run by its name, a run, or a model; may be repeated. "
    "Default: the first and the last weights of the run.",
)
@click.option("--engine", default="local", show_default=True, help="The engine that reads.")
@click.option("--most", default=10, show_default=True, help="Changes that are printed.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes of all tokens as JSON.")
def reread(
    run: Path, episode: str, models: tuple[str, ...], engine: str, most: int, as_json: bool
) -> None:
    """Read EPISODE of the run directory RUN again under other weights: how likely is each of its tokens there?

    Nothing is sampled, and neither agent nor environment runs. The readings stay in RUN/readings.jsonl, and the viewer
    shows them. What is printed compares the first model with the last; one model alone is compared with the weights
    that sampled the episode.

    \b
    areal-sdk reread runs/Capitals-DATE-TIME after-eval.eval-3.0
    areal-sdk reread runs/Capitals-DATE-TIME train-12.0 --model step-000020 --model step-000040
    """
    import orjson

    from areal_sdk import Run
    from areal_sdk_fork.reading import as_sampled, changes
    from areal_sdk_fork.reading import reread as read_again

    recorded = Run(run)
    found = read_again(recorded, episode, models, engine=engine, quiet=as_json)
    whole = recorded.episode(episode)
    before, after = as_sampled(whole) if len(found) == 1 else found[0], found[-1]
    changed = changes(whole, before, after)
    if as_json:
        click.echo(orjson.dumps(_as_json(changed, before, after), option=orjson.OPT_INDENT_2))
        return
    _print(changed, before, after, most=most, text=_texts(recorded))
    click.echo(f"the strip: areal-sdk view {shlex.quote(str(run))}, episode {episode}")


def _print(
    changed: list["Change"],
    before: "Reading",
    after: "Reading",
    *,
    most: int,
    text: Callable[[int], str],
) -> None:
    totals = (sum(one.before for one in changed), sum(one.after for one in changed))
    click.echo(
        f"{len(changed)} tokens: logprob {totals[0]:.4g} under {before.model}, {totals[1]:.4g} under {after.model}"
    )
    for one in changed[:most]:
        click.echo(
            f"  turn {one.turn} token {one.place}  {text(one.token)!r}: {exp(one.before):.2%} -> {exp(one.after):.2%}"
        )
        if likeliest := after.turns[one.turn].likeliest[one.place : one.place + 1]:
            said = ", ".join(f"{text(token)!r} {exp(value):.2%}" for token, value in likeliest[0])
            click.echo(f"    {after.model} would say {said}")


def _as_json(changed: list["Change"], before: "Reading", after: "Reading") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "before": before.model,
        "after": after.model,
        "changes": [asdict(one) for one in changed],
    }


def _texts(run: "Run") -> Callable[[int], str]:
    """The text of a token, or its id where the run kept no tokenizer."""
    from tokenizers import Tokenizer

    file = run.path / "model" / "tokenizer.json"
    if not file.is_file():
        return str
    tokenizer = Tokenizer.from_file(str(file))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))
