"""`areal-sdk export`: a run's weights as a model for others, with a card that says how they were made.

choose (which weights) -> directory (files, dtype, adapter) -> measure -> card (README.md) -> hub (upload)
"""

from areal_sdk.loop.export.card import Exported, Figures
from areal_sdk.loop.export.choice import Choice, choose
from areal_sdk.loop.export.directory import check_empty, write_export
from areal_sdk.loop.export.hub import check_name, push
from areal_sdk.loop.export.measure import measuring

__all__ = [
    "Choice",
    "Exported",
    "Figures",
    "check_empty",
    "check_name",
    "choose",
    "measuring",
    "push",
    "write_export",
]
