"""`areal-sdk doctor train`: will a step of the trainer fit on these GPUs?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from areal_sdk.cli.main import setting_options
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from areal_sdk.config import TrainerSection
    from areal_sdk.fsdp.memory.fitting import Fit
    from areal_sdk.fsdp.memory.predicted import Prediction


@click.command(name="train")
@click.option(
    "--model", required=True, help="A model, its directory, or a size: 1.5B, 7B, 32B, 70B."
)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--context",
    type=click.IntRange(1),
    help="Tokens at once; default: trainer.tokens_per_microbatch.",
)
@click.option("--memory", default=80.0, show_default=True, help="Of each GPU, in GB.")
@setting_options
@click.option("--json", "as_json", is_flag=True)
def check_memory(
    model: str,
    gpus: int,
    context: int | None,
    memory: float,
    file: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict the memory of a step on each GPU, and the longest context that fits.

    Exits with 1 where the step does not fit. The formulas are those of docs/trainer.md; a critic and a
    reference model, which some algorithms need, come on top.

    \b
    areal-sdk doctor train --model 7B --gpus 8 --context 16384
    """
    from areal_sdk.config import load_config
    from areal_sdk.fsdp.memory.fitting import RESERVE

    trainer = load_config(file=file, settings=(*settings, f"trainer.ranks={gpus}")).trainer
    fit = _fit(model, trainer, room=int(memory * 1e9 * (1 - RESERVE)))
    num_tokens = context or trainer.tokens_per_microbatch
    chosen = fit.chosen(num_tokens)
    found, longest = fit.needs(num_tokens, chosen), fit.longest(chosen)
    if as_json:
        numbers = {name: getattr(found, name) for name in _PARTS}
        click.echo(json.dumps({**numbers, "usable": fit.room, "largest_context": longest}))
    else:
        for line in _lines(found, num_tokens=num_tokens, gpus=gpus, fit=fit, longest=longest):
            click.echo(line)
    if found.total <= fit.room:
        return
    if not as_json:
        for cure, longer in fit.cures(chosen, longest):
            click.echo(f"with --set {cure}: {longer:,} tokens")
    raise SystemExit(1)


_PARTS = ("parameters", "moments", "gradients", "gathered", "activations", "logits", "total")


def _lines(
    found: "Prediction", *, num_tokens: int, gpus: int, fit: "Fit", longest: int
) -> list[str]:
    where = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
    rows = [f"{name:12}{getattr(found, name) / 1e9:8.2f} GB" for name in _PARTS]
    return [
        f"predicted for {where}, in a step with {num_tokens:,} tokens at once",
        *rows,
        f"{'usable':12}{fit.room / 1e9:8.2f} GB",
        f'trainer.activation_checkpointing = "{fit.chosen(num_tokens).activation_checkpointing}"',
        f"longest context that fits: {longest:,} tokens",
    ]


def _fit(model: str, trainer: "TrainerSection", *, room: int) -> "Fit":
    from areal_sdk.fsdp.memory.fitting import Fit
    from areal_sdk.shapes import SHAPES, find_directory

    if model in SHAPES:
        return Fit(SHAPES[model], trainer, "bfloat16", room)
    if (found := Fit.of(find_directory(model), trainer, room)) is None:
        raise ConfigError(
            f"--model {model!r}: no formula covers its architecture; name a size that is close: "
            f"{', '.join(SHAPES)}"
        )
    return found
