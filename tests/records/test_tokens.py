"""The tokens of one episode, found in the record of the step that trained it."""

import math
from pathlib import Path

import numpy as np
import pytest

import areal_sdk
from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.telemetry.token_log import (
    CountedGroup,
    CountedMinibatch,
    CountedSequence,
    StepTokens,
    TokenFlag,
    TokenWriter,
)
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode, Outcome, Task, Turn

ASKED = Turn((1, 2), (3, 4, 5), (-1.0, -2.0, -3.0), (0, 0, 0))
ANSWERED = Turn((1, 2, 3, 4, 5, 6), (7, 8), (-0.5, -0.25), (0, 0), parent=0)
EPISODE = Episode("g.0", Task("t"), (ASKED, ANSWERED), Outcome.scored(1.0), group="g")
TRAINED = TokenFlag.COUNTED | TokenFlag.TERM


def column(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


TOKENS = StepTokens(
    version=4,
    minibatches=(CountedMinibatch(6.0, True),),
    groups=(CountedGroup("g", "t", 0), CountedGroup("h", "u", None)),
    sequences=(
        CountedSequence("g.1", 0, -0.5, 0.5, ((0, 2, 1),)),
        # The first token of the first turn was too old, and is not counted.
        CountedSequence("g.0", 0, 0.5, 0.25, ((0, 3, 2), (1, 6, 2))),
        CountedSequence("h.0", 1, 0.0, 1.0, ((0, 2, 1),)),
    ),
    columns={
        "flags": np.array([3, 3, 7, 3, 97, 1], np.uint8),
        "advantage": column(-1.0, 1.0, 1.0, 2.0, 2.0, 0.0),
        "proximal_minus_behaviour": column(0.0, 0.25, 0.25, -0.25, 1.0, math.nan),
        "train_minus_proximal": column(0.0, 0.25, 0.0, 0.0, 0.0, math.nan),
        "log_weight": column(0.0, 0.25, 0.25, -0.25, -math.inf, math.nan),
        "loss": column(1.0, -1.0, -1.0, -2.0, 0.0, math.nan),
        "entropy": column(0.1, 0.2, 0.3, 0.4, 0.5, math.nan),
    },
)


@pytest.fixture
def run(tmp_path: Path) -> areal_sdk.Run:
    made = RunDir.create(tmp_path, "run")
    made.write_config({"model": "tiny"})
    episodes = EpisodeWriter(made.episodes)
    episodes.write(EPISODE)
    episodes.write(Episode("waits", Task("t"), (ASKED,), Outcome.scored(1.0)))
    episodes.mark_trained({"g.0": Credit(1.0)}, step=5)
    episodes.close()
    TokenWriter(made.tokens).write(5, TOKENS)
    return areal_sdk.Run(made.path)


def test_each_value_is_at_its_turn_and_token(run: areal_sdk.Run) -> None:
    found = run.episode_tokens("g.0")
    assert found is not None
    first, second = found.turns
    assert first.flags.tolist() == [0, TRAINED, TRAINED | TokenFlag.CLIPPED_LOW]
    assert np.isnan(first.advantage[0])
    assert first.advantage[1:].tolist() == [1.0, 1.0]
    assert first.logprob[1:].tolist() == [-1.5, -2.75]
    assert first.proximal[1:].tolist() == [-1.75, -2.75]
    assert first.ratio[1:] == pytest.approx([math.exp(0.25), 1.0])
    assert second.weight == pytest.approx([math.exp(-0.25), 0.0])
    assert second.entropy == pytest.approx([0.4, 0.5], rel=1e-3)
    assert (first.num_terms, second.num_terms) == (2, 1)
    assert np.isnan(second.reference).all(), "no reference was asked"


def test_an_episode_knows_its_step_and_its_siblings(run: areal_sdk.Run) -> None:
    found = run.episode_tokens("g.0")
    assert found is not None
    assert (found.step, found.version, found.reward) == (5, 4, 0.5)
    assert found.siblings == {"g.1": -0.5, "g.0": 0.5}
    assert (found.weight, found.divisor, found.is_applied) == (0.25, 6.0, True)


def test_an_episode_that_no_step_trained_has_no_record(run: areal_sdk.Run) -> None:
    assert run.episode_tokens("waits") is None


def test_a_step_whose_file_is_gone_is_no_error(run: areal_sdk.Run) -> None:
    (run.path / "tokens" / "step-000005.npz").unlink()
    assert run.tokens(5) is None
    assert run.episode_tokens("g.0") is None


def test_a_whole_step_is_read_in_columns(run: areal_sdk.Run) -> None:
    step = run.tokens(5)
    assert step is not None
    assert step.num_tokens == 6
    assert step.columns["advantage"].tolist() == [-1.0, 1.0, 1.0, 2.0, 2.0, 0.0]
