"""The trainer's lane as areal-sdk-plan predicts it from the run's own speeds, for a look under the measured one."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from areal_sdk_view.answers.lanes import LONGEST_S, MAX_BARS, of_steps, steps_of
from areal_sdk_view.library import Library


def plan(library: Library, name: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The predicted steps from `since` to `until`. The first one begins with the measured one; the others follow it, so
    the lanes drift apart where the run was faster or slower than its rules and speeds say."""
    since, until = (float(query.get(edge) or "nan") for edge in ("since", "until"))
    if not until - since < LONGEST_S:
        raise ValueError(f"since = {since}, until = {until}: give two moments")
    with library.open(name) as run:
        begins = {bar["step"]: bar["begin"] for bar in [*of_steps(steps_of(run))][::-1]}
    # The fit takes seconds of CPU: no other answer about the run waits for it.
    again = _again(library.path(name), len(begins).bit_length())
    bars: list[dict[str, Any]] = []
    step, at = min(((n, at) for n, at in begins.items() if since <= at < until), default=(0, until))
    while at < until and len(bars) < MAX_BARS:
        for kind, length in again.steps[min(int(step), len(again.steps)) - 1].items():
            bars.append({"kind": kind, "begin": at, "end": at + length, "step": step})
            at += length
        step += 1
    return {"bars": bars, "measured_s": again.measured_s, "predicted_s": again.predicted_s}


@lru_cache(maxsize=8)
def _again(run: Path, size: int) -> Any:
    """The plan's simulation of the run. `size` grows when the run has doubled: the simulation is then made again."""
    try:
        from areal_sdk_plan.again import play_again
    except ImportError:
        raise ValueError('areal-sdk-plan predicts steps: pip install "areal-sdk[plan]"') from None
    try:
        return play_again(run)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as exc:
        raise ValueError(f"a setting or a step of this run is damaged: {exc!r}") from exc
