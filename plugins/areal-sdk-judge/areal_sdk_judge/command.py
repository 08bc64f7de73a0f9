"""`areal-sdk judge FILE`: is this judge worth training on?"""

import asyncio
from pathlib import Path

import click

from areal_sdk_judge.prompts import RUBRIC


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--base-url", required=True, help="An OpenAI-compatible endpoint.")
@click.option("--model", required=True, help="The model to ask there.")
@click.option("--rubric", default=RUBRIC, help="What a good answer is.")
@click.option("--max-concurrency", type=int, default=16, show_default=True)
@click.option(
    "--timeout-s", type=float, default=20.0, show_default=True, help="Deadline of one request."
)
@click.option("--cache", default="", help="A file that keeps the judge's replies.")
@click.option("--prompt-price", type=float, default=0.0, help="Of a million tokens.")
@click.option("--completion-price", type=float, default=0.0, help="Of a million tokens.")
def judge(
    file: Path,
    base_url: str,
    model: str,
    rubric: str,
    max_concurrency: int,
    timeout_s: float,
    cache: str,
    prompt_price: float,
    completion_price: float,
) -> None:
    """Compare a judge with labelled examples, and tell what it costs.

    FILE is JSONL: {"question": ..., "answer": ..., "label": 0 to 1}. With "other", a second answer, the
    label says how much better the first one is. The endpoint's key is read from JUDGE_API_KEY.
    """
    from areal_sdk_judge.agreement import Agreement, check, read_examples
    from areal_sdk_judge.judge import Judge, JudgeOptions

    options = JudgeOptions(
        base_url=base_url,
        model=model,
        rubric=rubric,
        max_concurrency=max_concurrency,
        timeout_s=timeout_s,
        cache=cache,
        prompt_price=prompt_price,
        completion_price=completion_price,
    )
    examples = read_examples(file)

    async def ask() -> Agreement:
        asked = Judge(options)
        try:
            return await check(asked, examples)
        finally:
            await asked.aclose()

    found = asyncio.run(ask())
    click.echo(f"verdicts read       {found.num_read} of {found.num_examples}")
    click.echo(
        f"on the label's side {found.same_side:.2f}, beyond chance (kappa) {found.kappa:.2f}"
    )
    click.echo(f"mean difference     {found.mean_difference:.2f}")
    click.echo(f"pairs in one order  {found.same_order:.2f}")
    click.echo(f"tokens              {found.tokens:.0f}, cost {found.cost:.4f}")
