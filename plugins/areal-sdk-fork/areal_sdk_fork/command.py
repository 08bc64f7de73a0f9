"""`areal-sdk fork`: an episode again, from one of its turns, under other weights."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from areal_sdk.command import PlayingCommand

if TYPE_CHECKING:
    from areal_sdk import Episode
    from areal_sdk_fork.forking import Fork


@click.command(cls=PlayingCommand)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("episode")
@click.option(
    "--turn",
    type=click.IntRange(0),
    required=True,
    metavar="K",
    help="The first turn that is sampled anew, from 0.",
)
@click.option(
    "--model", required=True, help="The weights: a checkpoint of a run, a run, or a model."
)
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    help="Temperature from turn K on; 0 takes the likeliest token.",
)
@click.option("--engine", help="The engine that samples; default: that of the run.")
@click.option("--agent", help="The agent's file, for a run that was begun from Python.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def fork(
    run: Path,
    episode: str,
    turn: int,
    model: str,
    temperature: float,
    engine: str | None,
    agent: str | None,
    as_json: bool,
) -> None:
    """Replay EPISODE of the run directory RUN up to turn K, and go on under the weights of --model.

    Agent, environment and rewards run again. The turns before K are answered from the record.

    \b
    areal-sdk fork runs/Capitals-DATE-TIME after-eval.eval-3.0 --turn 1 --model runs/Capitals-DATE-TIME/checkpoints/step-000040
    """
    import orjson

    from areal_sdk import Run
    from areal_sdk_fork.forking import fork_episode

    made = fork_episode(
        Run(run),
        episode,
        turn=turn,
        model=model,
        temperature=temperature,
        engine=engine,
        agent=agent,
        quiet=as_json,
    )
    if as_json:
        click.echo(orjson.dumps(_as_json(made), option=orjson.OPT_INDENT_2).decode())
    else:
        _print(made)
    if made.forked.outcome.error is not None:
        raise SystemExit(1)


def _print(fork: "Fork") -> None:
    for name, episode in (("recorded", fork.recorded), ("forked", fork.forked)):
        click.echo(f"{name}: {_verdict(episode)}")
        for index, turn in enumerate(episode.turns[fork.turn :], fork.turn):
            calls = [call["function"]["name"] for call in turn.message.get("tool_calls") or ()]
            called = f" [calls {', '.join(calls)}]" if calls else ""
            click.echo(f"  turn {index}: {turn.text!r}{called}")
    match fork.first_difference:
        case None:
            click.echo("the same tokens from the fork to the end")
        case place, token:
            click.echo(f"they differ from token {token} of turn {place}")
    path = shlex.quote(fork.run_dir)
    click.echo(f"the fork: areal-sdk inspect {path} --episode {shlex.quote(fork.forked.id)}")


def _verdict(episode: "Episode") -> str:
    outcome = episode.outcome
    if outcome.error is not None:
        return f"{outcome.error} error: {outcome.message}"
    return (
        f"abstained: {outcome.message}" if outcome.reward is None else f"reward {outcome.reward:g}"
    )


def _as_json(fork: "Fork") -> dict[str, Any]:
    difference = fork.first_difference
    sides = {
        name: {
            "id": episode.id,
            "reward": episode.reward,
            "error": episode.outcome.message if episode.outcome.error else None,
            "turns": [turn.text for turn in episode.turns],
        }
        for name, episode in (("recorded", fork.recorded), ("forked", fork.forked))
    }
    differs = None if difference is None else {"turn": difference[0], "token": difference[1]}
    return {**sides, "turn": fork.turn, "differs_at": differs, "run_dir": fork.run_dir}
