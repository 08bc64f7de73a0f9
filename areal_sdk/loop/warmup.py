"""Supervised warm-up: the same trainer, one more loss, before the first episode."""

import random
from collections.abc import Sequence

from areal_sdk.errors import DivergedError
from areal_sdk.gateway.renderer import Chat, Renderer
from areal_sdk.gateway.templates import ChatTemplate
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.loop.demonstrations import Conversation
from areal_sdk.loop.device import hand_to_engine, hand_to_trainer, update_and_resume
from areal_sdk.loop.patience import MAX_SKIPPED_STEPS
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.rig import Rig
from areal_sdk.process.threads import in_thread
from areal_sdk.trainer.options import SftRow


async def warm_up(rig: Rig, demonstrations: Sequence[Conversation], *, progress: Progress) -> None:
    """Train on demonstrations and serve the result as version 0: nothing was sampled before."""
    assert rig.trainer is not None
    section = rig.config.sft
    progress.enter(f"supervised warm-up: {section.steps} steps")
    rows = await in_thread(lambda: _rows(rig, demonstrations), name="demonstrations")
    generator = random.Random(rig.config.run.seed)
    size = min(section.batch, len(rows))
    await hand_to_trainer(rig.engine)
    num_skipped = 0
    for step in range(1, section.steps + 1):
        metrics = await rig.trainer.sft_step(generator.sample(rows, size))
        progress.report_warmup(step, section.steps, metrics)
        num_skipped = 0 if metrics["num_updates"] else num_skipped + 1
        if num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {num_skipped} warm-up steps in a row were not finite: lower "
                "sft.learning_rate, or look for a demonstration that breaks the model"
            )
    update = await rig.trainer.publish(0)
    await hand_to_engine(rig.engine, rig.trainer)
    await update_and_resume(rig.engine, update)


def _rows(rig: Rig, demonstrations: Sequence[Conversation]) -> list[SftRow]:
    tokenizer, template = Tokenizer.load(rig.model_dir), ChatTemplate.load(rig.model_dir)
    renderer = Renderer(tokenizer, template, tool_format=rig.config.gateway.tool_format)
    return [demonstration_row(conversation, renderer) for conversation in demonstrations]


def demonstration_row(conversation: Conversation, renderer: Renderer) -> SftRow:
    """The conversation in tokens exactly as rollouts would see it, its assistant turns trained."""
    tokens: tuple[int, ...] = ()
    mask: list[bool] = []
    num_known = 0
    for index, message in enumerate(conversation):
        if message.get("role") != "assistant":
            continue
        chat = Chat(tuple(conversation[:index]))
        prompt = renderer.extend(tokens, chat, num_known) if tokens else renderer.first(chat)
        answer = renderer.answer(chat, message)
        mask += [False] * (len(prompt.tokens) - len(mask)) + [True] * len(answer)
        tokens = prompt.tokens + answer
        num_known = index + 1
    return SftRow(tokens, tuple(mask))
