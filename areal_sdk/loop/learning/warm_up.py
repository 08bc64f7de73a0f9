"""The supervised warm-up before the first episode. The trainer of the run does it, with another loss."""

import random
from collections.abc import Mapping, Sequence

from areal_sdk.errors import DivergedError
from areal_sdk.loop.learning.learner import Learner
from areal_sdk.loop.learning.steps import MAX_SKIPPED_STEPS
from areal_sdk.loop.plan.demonstrations import as_demonstrations
from areal_sdk.loop.plan.rows import Conversation
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services.opening import (
    Services,
    hand_to_engine,
    hand_to_trainer,
    update_and_resume,
)
from areal_sdk.process.threads import in_thread
from areal_sdk.trainer import Demonstration


async def warm_up(
    services: Services,
    learner: Learner,
    demonstrations: Sequence[Conversation],
    *,
    progress: Progress,
) -> None:
    """Train on demonstrations, and serve the result as version 0: nothing was sampled before."""
    section, state, trainer = services.config.sft, learner.state, learner.trainer
    progress.enter(f"supervised warm-up: {section.steps} steps")
    rows, notes = await in_thread(
        lambda: as_demonstrations(demonstrations, services.model.renderer),
        name="demonstrations",
    )
    for note in notes:
        progress.say(note)
    generator = random.Random(services.config.run.seed)
    batches = [generator.sample(rows, min(section.batch, len(rows))) for _ in range(section.steps)]
    await hand_to_trainer(services.engine)
    num_skipped = 0
    for batch in batches[state.warmup_steps :]:
        metrics = await learner.learn(
            _imitate(learner, batch, learning_rate=section.learning_rate),
            f"warm-up step {state.warmup_steps + 1}",
        )
        progress.report_warmup(state.warmup_steps, section.steps, metrics)
        num_skipped = 0 if metrics["num_updates"] else num_skipped + 1
        if num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {num_skipped} warm-up steps in a row were not finite: lower "
                "sft.learning_rate, or look for a demonstration that breaks the model"
            )
    update = await trainer.publish(0)
    await hand_to_engine(services.engine, trainer)
    await update_and_resume(services.engine, update)
    services.plugins.notify.on_weights(update=update)


async def _imitate(
    learner: Learner, batch: Sequence[Demonstration], *, learning_rate: float
) -> Mapping[str, float]:
    metrics = await learner.trainer.learn(batch, learning_rate=learning_rate)
    learner.state.warmup_steps += 1
    return metrics
