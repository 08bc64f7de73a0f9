"""The base class of all sections, and the types of their values."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from areal_sdk.config.root import Config

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


@dataclass(frozen=True, slots=True)
class IdleIf:
    """Annotation of a setting that changes nothing in some runs: in which, and why.

    `beta: Annotated[float, IdleIf(lambda run: run.finetune.objective != "dpo", "only dpo reads it")] = 0.1`
    """

    is_idle: Callable[["Config"], bool]
    why: str


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def contradictions(self, run: "Config") -> Iterator[str]:
        """Refusals of a run whose other settings exclude one of this section. Each names the cure."""
        yield from ()

    def remarks(self, run: "Config") -> Iterator[str]:
        """Warnings of settings of this section that change little or nothing in `run`, beyond `IdleIf`."""
        yield from ()

    def walk(self, key: str = "") -> Iterator[tuple[str, "Section"]]:
        """This section and all sections inside, each with the prefix of its keys, such as `rollout.sampling`."""
        yield key, self
        for name, value in self:
            if isinstance(value, Section):
                yield from value.walk(f"{key}{name}.")


def sections_in(model: type[BaseModel]) -> dict[str, type[Section]]:
    """The tables that a section declares, by name."""
    found = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: annotation
        for name, annotation in found.items()
        if isinstance(annotation, type) and issubclass(annotation, Section)
    }
