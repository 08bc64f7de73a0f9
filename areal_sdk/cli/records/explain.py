"""`areal-sdk explain`: one token's way from sampling to its part in the loss."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.records.explain import Receipt, Term
    from areal_sdk.telemetry import RunDir

NUM_SIBLINGS = 16
"""Number of siblings whose rewards are printed; `--json` has all."""


@click.command(name="explain")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("episode")
@click.option(
    "--token",
    type=click.IntRange(0),
    metavar="N",
    required=True,
    help="Number of the sampled token, from 0: of the episode, or of --turn.",
)
@click.option("--turn", type=click.IntRange(0), metavar="K", help="Count within this turn, from 0.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
def explain(run: Path, episode: str, token: int, turn: int | None, as_json: bool) -> None:
    """Explain a token of EPISODE in the run directory RUN: who sampled it, and what a step made of it.

    \b
    areal-sdk explain runs/calculator-20261121-101500 train-12.0 --token 7
    areal-sdk explain runs/calculator-20261121-101500 train-12.0 --turn 1 --token 0
    """
    from areal_sdk.cli.records.inspect import print_json
    from areal_sdk.records.explain import explain as receipt_of
    from areal_sdk.telemetry import RunDir

    run_dir = RunDir.open(run)
    receipt = receipt_of(run_dir, episode, token, turn=turn)
    if as_json:
        print_json(asdict(receipt))
        return
    for name, text in _lines(receipt, _text(run_dir, receipt.token)):
        click.echo(f"{name:11}{text}")


def _lines(receipt: "Receipt", text: str) -> Iterator[tuple[str, str]]:
    yield "token", f"{text}, number {receipt.place} of turn {receipt.turn} of {receipt.episode}"
    yield (
        "sampled",
        f"by version {receipt.version}, logprob {receipt.logprob:.6g} at T {receipt.temperature:g}",
    )
    if receipt.step is not None and receipt.from_version is not None:
        lag = receipt.from_version - receipt.version
        yield "step", f"{receipt.step}, from version {receipt.from_version}: {lag} after its own"
    reward = "none" if receipt.reward is None else f"{receipt.reward:g}"
    shaped = receipt.shaped_reward
    is_shaped = shaped is not None and shaped != receipt.reward
    yield "reward", f"{reward}{f', {shaped:g} after shaping' if is_shaped else ''}"
    if (siblings := receipt.siblings) is not None:
        rewards = [f"{value:g}" for value in siblings.rewards.values()]
        more = " ..." if len(rewards) > NUM_SIBLINGS else ""
        yield (
            "group",
            f"{siblings.group or '-'}: {', '.join(rewards[:NUM_SIBLINGS])}{more} "
            f"(mean {siblings.mean:.4g}, standard deviation {siblings.std:.4g})",
        )
    if receipt.advantage is not None:
        yield "advantage", f"{receipt.advantage:.6g} by {receipt.preset}"
    if receipt.term is not None:
        yield from _term_lines(receipt.term)
    share = receipt.update_share
    yes = "yes" if share in (None, 1.0) else f"yes: {share:#.2g} of the update was left"
    yield "trained", f"no: {receipt.why_not}" if receipt.why_not else yes


def _term_lines(term: "Term") -> Iterator[tuple[str, str]]:
    yield (
        "logprobs",
        f"trained {term.logprob:.6g}, centre of the trust region {term.proximal:.6g}"
        + ("" if term.reference is None else f", reference {term.reference:.6g}"),
    )
    if term.value is not None and term.target is not None:
        yield "critic", f"value {term.value:.4g}, learns {term.target:.4g}"
    yield "entropy", f"{term.entropy:.4g} nats"
    yield "ratio", f"{term.ratio:.6g}, {term.clip}"
    if term.weight is not None:
        yield "weight", f"{term.weight:.4g}, {term.bound}"
    yield (
        "loss",
        f"{term.loss:.4g} x {term.share:g} / {term.divisor:g} = {term.part:.4g} of its minibatch",
    )


def _text(run_dir: "RunDir", token: int) -> str:
    """The token as text, if the tokenizer is there, and its id."""
    from areal_sdk.cli.records.episode import find_decoder, printable

    decode = find_decoder(run_dir.model, str(run_dir.read_config().get("model", "")))
    return f"id {token}" if decode is None else f"{printable(decode([token]))!r} (id {token})"
