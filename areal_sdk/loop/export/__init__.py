"""`areal-sdk export`: a run's weights as a model for others, with a card that says how they were made.

choose (which weights) -> directory (files, dtype, adapter) -> card (README.md) -> hub (upload)
"""

from areal_sdk.loop.export.choice import Choice, choose
from areal_sdk.loop.export.directory import write_export
from areal_sdk.loop.export.hub import check_name, push

__all__ = ["Choice", "check_name", "choose", "push", "write_export"]
