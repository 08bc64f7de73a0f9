"""`areal-sdk doctor train`: will a step of the trainer fit on these GPUs?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from areal_sdk.command import setting_options
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from areal_sdk.config import TrainerSection
    from areal_sdk.fsdp.memory.fitting import Fit


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
    from areal_sdk.loop.plan.devices import device_plan
    from areal_sdk.loop.plan.parts import load_plugins_of

    config = load_config(file=file, settings=(f"trainer.ranks={gpus}", *settings))
    fit = _fit(model, config.trainer, room=int(memory * 1e9 * (1 - RESERVE)))
    num_tokens = context or config.trainer.tokens_per_microbatch
    chosen = fit.chosen(num_tokens)
    found, longest = fit.needs(num_tokens, chosen), fit.longest(chosen)
    parts = {name: getattr(found, name) for name in _PARTS} | {"usable": fit.room}
    if as_json:
        click.echo(json.dumps({**parts, "largest_context": longest}))
    else:
        click.echo(f"predicted for each rank, in a step with {num_tokens:,} tokens at once")
        for name, size in parts.items():
            click.echo(f"{name:12}{size / 1e9:8.2f} GB")
        click.echo(f'activation_checkpointing = "{chosen.activation_checkpointing}"')
        click.echo(f"longest context that fits: {longest:,} tokens")
        machine = [int(memory * 1e9)] * gpus
        for line in device_plan(config, load_plugins_of(config), fit, memories=machine).lines:
            click.echo(line)
    if found.total <= fit.room:
        return
    if not as_json:
        for cure, longer in fit.cures(chosen, longest):
            click.echo(f"with --set {cure}: {longer:,} tokens")
    raise SystemExit(1)


_PARTS = ("parameters", "moments", "gradients", "gathered", "activations", "logits", "total")


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
