"""`areal-sdk doctor train`: will a step of the trainer fit on these GPUs?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.config import TrainerSection
    from areal_sdk.fsdp.memory.predicted import Prediction
    from areal_sdk.shapes import ModelShape

RESERVE = 0.1
"""Part of a GPU's memory that is left for CUDA, NCCL and what allocation wastes."""
CURES = (
    "trainer.activation_checkpointing=full",
    "trainer.defer_gradient_sync=false",
    "trainer.lora.rank=16",
)


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
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="One setting.")
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
    from areal_sdk.fsdp.memory.predicted import largest_context, predict

    def section(*more: str) -> "TrainerSection":
        from areal_sdk.config import load_config

        return load_config(file=file, settings=(*settings, f"trainer.ranks={gpus}", *more)).trainer

    shape, stored = _architecture(model)
    trainer = section()
    num_tokens = context or trainer.tokens_per_microbatch
    usable = int(memory * 1e9 * (1 - RESERVE))
    found = predict(shape, trainer, num_tokens=num_tokens, stored=stored)
    longest = largest_context(shape, trainer, memory=usable, stored=stored)
    if as_json:
        numbers = {name: getattr(found, name) for name in _PARTS}
        click.echo(json.dumps({**numbers, "usable": usable, "largest_context": longest}))
    else:
        for line in _lines(found, num_tokens=num_tokens, gpus=gpus, usable=usable, longest=longest):
            click.echo(line)
    if found.total <= usable:
        return
    if not as_json:
        for cure in CURES:
            longer = largest_context(shape, section(cure), memory=usable, stored=stored)
            if longer > longest:
                click.echo(f"with --set {cure}: {longer:,} tokens")
    raise SystemExit(1)


_PARTS = ("parameters", "moments", "gradients", "gathered", "activations", "logits", "total")


def _lines(
    found: "Prediction", *, num_tokens: int, gpus: int, usable: int, longest: int
) -> list[str]:
    where = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
    rows = [f"{name:12}{getattr(found, name) / 1e9:8.2f} GB" for name in _PARTS]
    return [
        f"predicted for {where}, in a step with {num_tokens:,} tokens at once",
        *rows,
        f"{'usable':12}{usable / 1e9:8.2f} GB",
        f"longest context that fits: {longest:,} tokens",
    ]


def _architecture(model: str) -> "tuple[ModelShape, str]":
    """The numbers of a model, and the type that it is stored in."""
    from areal_sdk.models import resolve_model
    from areal_sdk.models.families import read_config, stored_dtype
    from areal_sdk.shapes import SHAPES, ModelShape

    if model in SHAPES:
        return SHAPES[model], "bfloat16"
    local = Path(model).expanduser()
    directory = local if local.is_dir() else resolve_model(model, weights=False)
    return ModelShape.of(read_config(directory)), stored_dtype(directory)
