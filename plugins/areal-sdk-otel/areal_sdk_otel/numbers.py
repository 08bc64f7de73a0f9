"""The numbers of a run in Prometheus' text format."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from areal_sdk import Episode
from areal_sdk.types import OutcomeKind
from areal_sdk_otel.otlp import clean

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """A metric of Prometheus."""

    name: str
    kind: str
    help: str


STEP = Family("areal_sdk_step", "gauge", "The last step.")
VERSION = Family("areal_sdk_weights_version", "gauge", "The version that the engine samples with.")
METRIC = Family(
    "areal_sdk_metric", "gauge", "A number of the last step, named as in metrics.jsonl."
)
EVALUATION = Family("areal_sdk_evaluation", "gauge", "A number of the last evaluation of a split.")
EPISODES = Family(
    "areal_sdk_episodes_total", "counter", "Episodes that ended, by split, outcome and drop."
)
SECONDS = Family("areal_sdk_episode_seconds_total", "counter", "Seconds that these episodes took.")
REWARDS = Family("areal_sdk_rewards_total", "counter", "Episodes that got a reward.")
REWARD = Family("areal_sdk_reward_sum", "gauge", "The sum of their rewards.")
TURNS = Family("areal_sdk_turns_total", "counter", "Calls of the model.")
TOKENS = Family(
    "areal_sdk_tokens_total", "counter", "Tokens of prompts, cached ones, and sampled ones."
)
EXPORTED = Family(
    "areal_sdk_otel_exported_total",
    "counter",
    "Spans and log records that a collector took, or not.",
)

FAMILIES: Final = (
    *(STEP, VERSION, METRIC, EVALUATION, EPISODES, SECONDS),
    *(REWARDS, REWARD, TURNS, TOKENS, EXPORTED),
)

Labels = tuple[tuple[str, str], ...]


class Numbers:
    """Counts what a run tells. The run writes, and the thread that answers Prometheus reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Family, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))

    def set(self, family: Family, value: float, **labels: str) -> None:
        with self._lock:
            self._values[family][tuple(labels.items())] = value

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._values[STEP][()] = step
            self._values[METRIC] = {(("name", name),): v for name, v in metrics.items()}

    def episode(self, episode: Episode, *, split: str, dropped: str) -> None:
        outcome, turns, by_split = episode.outcome, episode.turns, (("split", split),)
        fate = (*by_split, ("outcome", outcome.error or outcome.kind), ("dropped", dropped))
        with self._lock:
            self._values[EPISODES][fate] += 1
            self._values[SECONDS][by_split] += episode.duration_s
            self._values[TURNS][by_split] += len(turns)
            for kind, number in (
                ("prompt", sum(turn.num_prompt for turn in turns)),
                ("cached", sum(turn.num_cached for turn in turns)),
                ("sampled", sum(len(turn.output_tokens) for turn in turns)),
            ):
                self._values[TOKENS][(*by_split, ("kind", kind))] += number
            if outcome.kind is OutcomeKind.REWARD and outcome.reward is not None:
                self._values[REWARDS][by_split] += 1
                self._values[REWARD][by_split] += outcome.reward

    def text(self, **common: str) -> str:
        """All numbers. `common` are the labels of every line."""
        with self._lock:
            values = {family: dict(rows) for family, rows in self._values.items()}
        return "".join(_lines(values, tuple(common.items())))


def _lines(values: Mapping[Family, Mapping[Labels, float]], common: Labels) -> Iterator[str]:
    for family in FAMILIES:
        if rows := values.get(family):
            yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
            for labels, value in rows.items():
                yield f"{family.name}{{{_labels((*common, *labels))}}} {_number(value)}\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    r"""Labels as Prometheus reads them.

    >>> _labels([("run", 'a "b"'), ("name", "x\\y\n")])
    'run="a \\"b\\"",name="x\\\\y\\n"'
    """
    return ",".join(f'{key}="{_escaped(clean(value))}"' for key, value in labels)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """A number as Prometheus reads it.

    >>> _number(3.0), _number(float("inf")), _number(float("nan"))
    ('3.0', '+Inf', 'NaN')
    """
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text := repr(float(value)), text)
