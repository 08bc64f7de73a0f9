"""Whose turn it is on a device that engine and trainer share; where they do not, nothing happens.

The engine's memory goes to the trainer for a step and comes back for the next weights; generation
goes on, requests in flight included, once they are in.
"""

from areal_sdk.engine import InferenceEngine
from areal_sdk.telemetry import waiting
from areal_sdk.trainer.client import TrainerClient
from areal_sdk.types import WeightUpdate

HANDOVER_TIMEOUT_S = 900.0
"""A server in the middle of its start is waited for."""


async def hand_to_trainer(engine: InferenceEngine) -> None:
    """Hold generation and free the engine's memory. No update may be on its way."""
    if engine.info.shares_device:
        async with waiting("engine: lends its memory", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.release_memory()


async def hand_to_engine(engine: InferenceEngine, trainer: TrainerClient) -> None:
    """After `publish`: what the trainer does not keep between steps is the engine's again."""
    if engine.info.shares_device:
        await trainer.release_memory()
        async with waiting("engine: takes its memory back", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.resume_memory()


async def update_and_resume(engine: InferenceEngine, update: WeightUpdate) -> None:
    """Serve `update`; requests that were held go on under it."""
    await engine.update_weights(update)
    if engine.info.shares_device:
        await engine.resume()
