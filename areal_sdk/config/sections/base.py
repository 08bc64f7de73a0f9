"""The base class of all sections, and the types of their values."""

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
)

JSON = dict[str, Any]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError("choose auto, cpu, cuda or cuda:INDEX")
    return name


Device = Annotated[str, AfterValidator(_device)]
ENDLESS = 10**9
"""The number of steps of a run without an end: somebody stops it."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def sections_in(model: type[BaseModel]) -> dict[str, type[Section]]:
    """The tables that a section declares, by name."""
    found = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: annotation
        for name, annotation in found.items()
        if isinstance(annotation, type) and issubclass(annotation, Section)
    }
