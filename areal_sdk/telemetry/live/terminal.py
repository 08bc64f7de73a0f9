"""The live view of a run: pure functions from its status to lines, and a painter of these lines.

In a terminal the view is repainted in place; elsewhere the view is one plain line per step.
"""

import contextlib
import itertools
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, Self, TextIO

from areal_sdk.telemetry.live.waits import wait_length

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
CURVE_WIDTH = 24

Span = tuple[str, str]
"""(style, text): a part of a line."""

_STYLES = {"plain": "", "dim": "2", "bold": "1", "good": "32"}

STALENESS, OLDEST = "batch/staleness", "batch/staleness_max"
"""Metrics of a batch: mean and maximum over its episodes of the age, in versions, of the oldest trained token."""

MANY = 1e6
"""Reward from which a power of ten is shown, as in `2.5e+29`."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run at one moment. Also written to `live.json`, for `inspect --live`."""

    name: str = ""
    """Name of what runs, such as the agent and the model."""
    unit: str = "step"
    """The unit that `step` counts."""
    step: int = 0
    total_steps: int = 0
    version: int = 0
    elapsed_s: float = 0.0
    """Time since the run began, including loading and evaluations."""
    train_s: float = 0.0
    """Time spent on steps so far, including the steps before a resume."""
    rewards: Sequence[float | None] = ()
    """Mean reward of each step so far."""
    success_before: float | None = None
    """Held-out success before training."""
    success: float | None = None
    """The latest held-out success."""
    success_step: int | None = None
    """Step of the weights that `success` was measured on."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The numbers of the last step's line in `metrics.jsonl`, such as `batch/staleness` and `train/loss`. A line of the
    view may show any of them."""
    sampled_per_s: float | None = None
    """Tokens that the engine samples per second."""
    trained_per_s: float | None = None
    """Tokens that the trainer trains per second."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    """`Ledger.snapshot()`."""
    waits: Sequence[Mapping[str, Any]] = ()
    """`Wait.as_json()` of each, the longest first."""
    note: str = ""
    """One more line: an activity besides training, such as an evaluation."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})


def render(
    state: RunStatus, *, width: int = 80, color: bool = False, unicode: bool = True
) -> list[str]:
    """The view as lines of at most `width` columns."""
    lines = [_progress(state, width, unicode), _reward(state, unicode), _speed(state)]
    lines += [
        _shares(source_shares(state.metrics)),
        _books(state.ledger),
        _waits(state.waits),
        [("plain", state.note)],
    ]
    return [
        _paint(_clip(line, width), color=color) for line in lines if any(text for _, text in line)
    ]


def plain_line(state: RunStatus) -> str:
    """One step in one line, for logs and pipes."""
    parts = [_step(state)]
    if state.rewards and state.rewards[-1] is not None:
        parts.append(f"reward {reward_text(state.rewards[-1])}")
    if (oldest := state.metrics.get(OLDEST)) is not None:
        parts.append(f"staleness {state.metrics.get(STALENESS) or 0.0:.1f} (max {oldest:.0f})")
    if state.sampled_per_s is not None:
        parts.append(f"{state.sampled_per_s:.0f} tok/s")
    if state.ledger:
        parts.append(_fates(state.ledger))
    parts.append(clock(state.elapsed_s))
    return "  ".join(_printable(part) for part in parts)


def _fates(ledger: Mapping[str, Any]) -> str:
    """The number of episodes that were trained, and the fates of the others."""
    counts = {name: ledger[name] for name in ("buffered", "running")}
    counts["dropped"] = sum(ledger["dropped"].values())
    others = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    trained = f"trained {ledger['trained']} of {ledger['started']} episodes"
    return f"{trained} ({others})" if others else trained


def still_line(state: RunStatus) -> str:
    """A sign of life between two steps, for logs and pipes: step, activity, longest wait, time.

    >>> still_line(RunStatus(step=3, total_steps=20, note="evaluating step-3: 7 of 9", elapsed_s=75))
    'step 3/20  evaluating step-3: 7 of 9  1:15'
    """
    waits = "".join(text for _, text in _waits(state.waits))
    ledger = state.ledger
    started = f"{ledger['started']} episodes started, {ledger['buffered']} wait" if ledger else ""
    parts = [_step(state), state.note or started, waits, clock(state.elapsed_s)]
    return "  ".join(_printable(part) for part in parts if part)


def curve(values: Sequence[float | None], *, width: int = CURVE_WIDTH, bars: str = BARS) -> str:
    """`values` as one bar each. If there are more than `width`, neighbours are averaged.

    >>> curve([0.0, 0.5, 1.0])
    '▁▅█'
    >>> curve([0.3, None, 0.3])
    '▄▄'
    """
    numbers = [v for v in values if v is not None and math.isfinite(v)]
    if len(numbers) > width:
        edges = [round(i * len(numbers) / width) for i in range(width + 1)]
        chunks = [numbers[a:b] for a, b in itertools.pairwise(edges)]
        numbers = [sum(chunk) / len(chunk) for chunk in chunks]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    if high == low:
        return bars[len(bars) // 2 - 1] * len(numbers)
    top = len(bars) - 1
    return "".join(bars[math.floor((v - low) / (high - low) * top + 0.5)] for v in numbers)


def clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class StatusWriter(Protocol):
    """The place where the status of a run is shown."""

    @property
    def repaints(self) -> bool:
        """Whether a status replaces the status before; else lines stay."""

    def update(self, state: RunStatus) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class TerminalView:
    """Shows a run's status on a stream: repainted in a terminal, one line per step elsewhere."""

    def __init__(self, stream: TextIO, *, environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        is_terminal = stream.isatty() and environ.get("TERM") != "dumb"
        self.repaints = is_terminal and not environ.get("CI")
        self._color = self.repaints and not environ.get("NO_COLOR")
        self._unicode = "utf" in (getattr(stream, "encoding", None) or "ascii").lower()
        self._num_painted = 0
        self._last_step: int | None = None

    def update(self, state: RunStatus) -> None:
        """Show `state`."""
        if self.repaints:
            width = shutil.get_terminal_size().columns - 1  # the last column makes some wrap
            lines = render(state, width=width, color=self._color, unicode=self._unicode)
            self._repaint(lines)
        elif state.step != self._last_step:
            self._write(self._encodable(plain_line(state)) + "\n")
        self._last_step = state.step

    def message(self, text: str) -> None:
        """Print a line that stays, above the view."""
        self._erase()
        self._write(self._encodable(_printable(text)) + "\n")

    def close(self) -> None:
        """Leave the last view on the screen; later output comes below the view."""
        self._num_painted = 0

    def _repaint(self, lines: Sequence[str]) -> None:
        self._erase()
        self._write("".join(f"{line}\n" for line in lines))
        self._num_painted = len(lines)

    def _erase(self) -> None:
        if self._num_painted:
            self._write(f"\x1b[{self._num_painted}F\x1b[J")
            self._num_painted = 0

    def _write(self, text: str) -> None:
        """Write, and ignore a closed terminal or pipe. The run directory has everything."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def _encodable(self, text: str) -> str:
        return text if self._unicode else text.encode("ascii", "replace").decode()


def _progress(state: RunStatus, width: int, unicode: bool) -> list[Span]:
    head: list[Span] = [("bold", f"{state.name}  " if state.name else "")]
    if not state.total_steps:
        return [*head, ("plain", f"{_step(state)}  {clock(state.elapsed_s)}")]
    done = min(1.0, state.step / state.total_steps)
    size = 20 if width >= 72 else 8
    filled = round(done * size)
    full, empty = ("━", "─") if unicode else ("#", "-")
    left = state.train_s / state.step * (state.total_steps - state.step) if state.step else None
    times = clock(state.elapsed_s) + (f", {clock(left)} left" if left else "")
    return [
        *head,
        ("plain", f"{_step(state)} "),
        ("good", full * filled),
        ("dim", empty * (size - filled)),
        ("plain", f" {done:4.0%}  {times}"),
    ]


def counted(count: int, what: str) -> str:
    """A count with its noun, in the plural unless it is 1.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _step(state: RunStatus) -> str:
    count = f"{state.unit} {state.step}"
    return f"{count}/{state.total_steps}" if state.total_steps else count


def _reward(state: RunStatus, unicode: bool) -> list[Span]:
    last = next((value for value in reversed(state.rewards) if value is not None), None)
    spans: list[Span] = []
    if last is not None:
        bars = curve(state.rewards, bars=BARS if unicode else PLAIN_BARS)
        spans += [("dim", "reward    "), ("bold", f"{reward_text(last)} "), ("good", bars)]
    if state.success is not None:
        is_first = state.success_before is None or not state.success_step
        before = "" if is_first else f"{state.success_before:.2f} -> "
        step = "" if state.success_step is None else f" at step {state.success_step}"
        spans += [("dim", "   success "), ("plain", before), ("bold", f"{state.success:.2f}")]
        spans += [("dim", step)]
    return spans


def _speed(state: RunStatus) -> list[Span]:
    parts = []
    if state.sampled_per_s is not None:
        parts.append(f"{state.sampled_per_s:,.0f} sampled")
    if state.trained_per_s is not None:
        parts.append(f"{state.trained_per_s:,.0f} trained")
    spans: list[Span] = [("dim", "tokens/s  "), ("plain", ", ".join(parts))] if parts else []
    if (oldest := state.metrics.get(OLDEST)) is not None:
        mean = state.metrics.get(STALENESS) or 0.0
        spans += [("dim", f"{'   ' if parts else ''}staleness "), ("plain", f"{mean:.1f} mean, ")]
        spans += [("plain", f"{oldest:.0f} max, at version {state.version}")]
    return spans


def _shares(shares: Mapping[str, float]) -> list[Span]:
    return [("dim", "shares    "), ("plain", shares_line(shares))] if shares else []


def shares_line(shares: Mapping[str, float]) -> str:
    """The shares of sources as one line for the user.

    >>> shares_line({"easy": 0.032258, "hard": 0.967742})
    'easy 3 %, hard 97 %'
    """
    return ", ".join(f"{source} {100 * share:.0f} %" for source, share in shares.items())


def source_shares(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The shares that a curriculum gave to the sources, from the numbers of a step; empty without a curriculum.

    >>> source_shares({"batch/source/easy/share": 0.25, "batch/source/easy/reward": 1.0})
    {'easy': 0.25}
    """
    return {
        key.removeprefix("batch/source/").removesuffix("/share"): value
        for key, value in metrics.items()
        if key.startswith("batch/source/") and key.endswith("/share") and value is not None
    }


def _books(ledger: Mapping[str, Any]) -> list[Span]:
    if not ledger:
        return []
    dropped: Mapping[str, int] = ledger["dropped"]
    reasons = sorted(dropped, key=lambda reason: -dropped[reason])
    why = f" ({', '.join(f'{reason} {dropped[reason]}' for reason in reasons)})" if reasons else ""
    return [
        ("dim", "episodes  "),
        ("plain", f"{ledger['trained']} trained, {ledger['buffered']} buffered, "),
        ("plain", f"{ledger['running']} running, {sum(dropped.values())} dropped{why}"),
    ]


def _waits(waits: Sequence[Mapping[str, Any]]) -> list[Span]:
    if not waits:
        return []
    # Rollouts that wait for the trainer are normal: show another wait if there is one.
    longest = next((wait for wait in waits if not _is_throttled(wait)), waits[0])
    more = f"; {counted(len(waits) - 1, 'other wait')}" if len(waits) > 1 else ""
    if _is_throttled(longest):
        text = f"rollouts are ahead, waiting for the trainer, {longest['waited_s']:.0f} s"
        return [("plain", text), ("plain", more)]
    lasted = wait_length(longest["waited_s"], longest["timeout_s"])
    return [("dim", "waits for "), ("plain", f"{longest['name']}, {lasted}{more}")]


def _is_throttled(wait: Mapping[str, Any]) -> bool:
    return bool(wait.get("is_throttle"))


def _clip(spans: Sequence[Span], width: int) -> list[Span]:
    clipped: list[Span] = []
    for style, text in spans:
        text = _printable(text)[: max(0, width)]
        clipped.append((style, text))
        width -= len(text)
    return clipped


def _paint(spans: Sequence[Span], *, color: bool) -> str:
    if not color:
        return "".join(text for _, text in spans).rstrip()
    return "".join(
        f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and _STYLES[style] else text
        for style, text in spans
    )


def _printable(text: str) -> str:
    """`text` without control characters: the name of a task must not control the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def reward_text(reward: float) -> str:
    """A reward in a few characters, however large it is.

    >>> reward_text(0.25), reward_text(-2.0), reward_text(2.5e29)
    ('0.250', '-2.000', '2.5e+29')
    """
    return f"{reward:.3f}" if abs(reward) < MANY else f"{reward:g}"
