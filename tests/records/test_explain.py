"""`explain` says what became of a token, and why it taught nothing."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from areal_sdk.cli.records.explain import explain as command
from areal_sdk.errors import ConfigError
from areal_sdk.records.explain import Receipt, explain
from areal_sdk.telemetry import DropReason, EpisodeWriter, RunDir
from areal_sdk.telemetry.metrics import MetricsLog
from areal_sdk.telemetry.token_log import (
    CountedGroup,
    CountedMinibatch,
    CountedSequence,
    StepTokens,
    TokenFlag,
    TokenWriter,
)
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode, Exclusion, Outcome, Task, Turn

ASKED = Turn((1, 2), (3, 4, 5), (-1.0, -2.0, -3.0), (2, 2, 3), temperature=0.5)
ANSWERED = Turn((1, 2, 3, 4, 5, 6), (7, 8), (-0.5, -0.25), (3, 3), parent=0)
EPISODE = Episode("g.0", Task("t"), (ASKED, ANSWERED), Outcome.scored(1.0), group="g")
COUNTED, TERM = TokenFlag.COUNTED, TokenFlag.TERM


def recorded(
    tmp_path: Path,
    *,
    episode: Episode = EPISODE,
    flags: Sequence[int] = (COUNTED | TERM,) * 5,
    runs: tuple[tuple[int, int, int], ...] = ((0, 2, 3), (1, 6, 2)),
    is_applied: bool = True,
    share: float = 1.0,
    **columns: Sequence[float],
) -> RunDir:
    """A run whose step 5 counted these tokens of the episode, and a sibling without any."""
    run = RunDir.create(tmp_path, "run")
    run.write_config({"model": "nowhere", "algorithm": {"name": "grpo"}})
    episodes = EpisodeWriter(run.episodes)
    episodes.write(episode)
    episodes.mark_trained({episode.id: Credit(1.0)}, step=5)
    episodes.close()
    zeros = [0.0] * len(flags)
    names = ("advantage", "proximal_minus_behaviour", "train_minus_proximal", "loss", "entropy")
    given = {**dict.fromkeys(names, zeros), **columns}
    tokens = StepTokens(
        version=4,
        minibatches=(CountedMinibatch(8.0, is_applied, share),),
        groups=(CountedGroup("g", "t", 0),),
        sequences=(
            CountedSequence(episode.id, 0, 0.5, 0.25, runs),
            CountedSequence("g.1", 0, -0.5, 0.25, ()),
        ),
        columns={
            "flags": np.array(flags, np.uint8),
            **{name: np.asarray(column, np.float32) for name, column in given.items()},
        },
    )
    TokenWriter(run.tokens).write(5, tokens)
    return run


def untrained(tmp_path: Path, episode: Episode = EPISODE, **record: object) -> Receipt:
    """The receipt of the first token of an episode that no step trained."""
    run = RunDir.create(tmp_path, "run")
    run.write_config({"model": "nowhere"})
    episodes = EpisodeWriter(run.episodes)
    episodes.write(episode, **record)  # type: ignore[arg-type]
    episodes.close()
    return explain(run, episode.id, 0)


def test_a_receipt_leads_from_the_sampler_to_the_loss(tmp_path: Path) -> None:
    """By hand: w = e^0.5, r = e^0.25, and 2 x 0.25 / 8 = 0.0625 of the minibatch."""
    run = recorded(
        tmp_path,
        advantage=[0.0, 0.0, 0.0, 0.0, 2.0],
        proximal_minus_behaviour=[0.0, 0.0, 0.0, 0.0, 0.5],
        train_minus_proximal=[0.0, 0.0, 0.0, 0.0, 0.25],
        loss=[0.0, 0.0, 0.0, 0.0, 2.0],
        entropy=[0.0, 0.0, 0.0, 0.0, 1.5],
    )
    receipt = explain(run, "g.0", 4)
    assert receipt == explain(run, "g.0", 1, turn=1), "counted in the episode, or in the turn"
    assert (receipt.turn, receipt.place, receipt.token) == (1, 1, 8)
    assert (receipt.version, receipt.logprob, receipt.temperature) == (3, -0.25, 1.0)
    assert (receipt.step, receipt.from_version) == (5, 4)
    assert (receipt.reward, receipt.shaped_reward, receipt.preset) == (1.0, 0.5, "grpo")
    assert receipt.siblings is not None
    assert receipt.siblings.rewards == {"g.0": 0.5, "g.1": -0.5}
    assert (receipt.siblings.mean, receipt.siblings.std) == (0.0, 0.5)
    assert receipt.advantage == 2.0
    term = receipt.term
    assert term is not None
    assert (term.proximal, term.logprob, term.entropy) == (0.25, 0.5, 1.5)
    assert (term.ratio, term.weight) == pytest.approx((math.exp(0.25), math.exp(0.5)))
    assert (term.share, term.divisor, term.part) == (0.25, 8.0, 0.0625)
    assert term.reference is None
    assert receipt.why_not == ""


def test_a_token_that_is_held_back_says_how(tmp_path: Path) -> None:
    term = COUNTED | TERM
    flags = [
        term | TokenFlag.CLIPPED_LOW,
        term | TokenFlag.CLIPPED_HIGH,
        term | TokenFlag.CLIPPED_DUAL,
        term | TokenFlag.BOUNDED,
        term | TokenFlag.BOUNDED | TokenFlag.MASKED,
    ]
    run = recorded(tmp_path, flags=flags, log_weight=[0.0, 0.0, 0.0, 1.5, -math.inf])
    receipts = [explain(run, "g.0", token) for token in range(5)]
    terms = [receipt.term for receipt in receipts]
    assert [term.clip for term in terms if term is not None] == [
        "below the trust region",
        "above the trust region",
        "the loss is at its upper bound (dual_clip)",
        "within the trust region",
        "within the trust region",
    ]
    assert [term.bound for term in terms if term is not None][2:] == [
        "within its bound",
        "at the maximum",
        "0: beyond the maximum",
    ]
    assert [bool(receipt.why_not) for receipt in receipts] == [False] * 4 + [True]
    assert "weighs nothing" in receipts[-1].why_not


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"flags": (COUNTED,) * 5}, "its advantage is 0"),
        ({"flags": (COUNTED | TERM | TokenFlag.SCREENED,) * 5}, "has removed it"),
        ({"is_applied": False}, "its gradient was not finite"),
        ({"share": 0.0}, "its update was taken back as a whole"),
        ({"flags": (COUNTED | TERM,) * 2, "runs": ((1, 6, 2),)}, "too old when the batch was cut"),
        (
            {"flags": (), "runs": (), "episode": replace(EPISODE, truncated=True)},
            "its episode was truncated",
        ),
    ],
)
def test_a_token_that_taught_nothing_says_why(
    tmp_path: Path, change: Mapping[str, object], why: str
) -> None:
    receipt = explain(recorded(tmp_path, **change), "g.0", 0)  # type: ignore[arg-type]
    assert why in receipt.why_not


def test_a_token_of_an_episode_that_no_step_trained_says_why(tmp_path: Path) -> None:
    context = replace(EPISODE, turns=(replace(ASKED, excluded=Exclusion.GREEDY),))
    told = [
        untrained(tmp_path / "context", context),
        untrained(tmp_path / "dropped", dropped=DropReason.ABSTAINED),
        untrained(tmp_path / "eval", split="eval"),
        untrained(tmp_path / "waits"),
    ]
    assert [receipt.why_not for receipt in told] == [
        "its turn is context only: greedy",
        "its episode was dropped: abstained",
        "its episode is an evaluation (eval)",
        "no step has trained its episode: it waits, or its group was too old when a batch was cut",
    ]
    assert all(receipt.term is None and receipt.step is None for receipt in told)
    assert all(receipt.logprob == -1.0 for receipt in told), "who sampled it is known all the same"


def test_a_step_that_the_guard_took_back_taught_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with closing(MetricsLog(run.metrics)) as log:
        log.log("step", {"step": 6})
        log.log("step", {"step": 7, "train/rolled_back_to": 5.0})
    assert explain(run, "g.0", 0).why_not == "", "the weights of its own step came back"
    with closing(MetricsLog(run.metrics)) as log:
        log.log("step", {"step": 8, "train/rolled_back_to": 4.0})
    why = "the guard took its step back: step 8 put the weights of step 4 back"
    assert explain(run, "g.0", 0).why_not == why


def test_the_part_of_an_update_that_was_left_is_told(tmp_path: Path) -> None:
    run = recorded(tmp_path, share=0.1)
    shown = CliRunner().invoke(command, [str(run.path), "g.0", "--token", "0"])
    assert shown.output.splitlines()[-1] == "trained    yes: 0.10 of the update was left"
    assert explain(run, "g.0", 0).update_share == 0.1


def test_a_record_that_is_gone_is_not_called_untrained(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run.tokens / "step-000005.npz").unlink()
    assert "unknown: the record of step 5 is gone" in explain(run, "g.0", 0).why_not


def test_a_token_that_is_not_there_is_refused_with_the_number_that_are(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with pytest.raises(
        ConfigError, match=r"token 5: episode g\.0 sampled 5 tokens, counted from 0"
    ):
        explain(run, "g.0", 5)
    with pytest.raises(ConfigError, match=r"token 2: turn 1 of episode g\.0 sampled 2 tokens"):
        explain(run, "g.0", 2, turn=1)
    with pytest.raises(ConfigError, match=r"turn 2: episode g\.0 has 2 turns"):
        explain(run, "g.0", 0, turn=2)


def test_the_command_prints_the_receipt_line_by_line_and_as_json(tmp_path: Path) -> None:
    run = recorded(tmp_path, advantage=[1.0] * 5, loss=[-1.0] * 5)
    shown = CliRunner().invoke(command, [str(run.path), "g.0", "--token", "2"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "token      id 5, number 2 of turn 0 of g.0",
        "sampled    by version 3, logprob -3 at T 0.5",
        "step       5, from version 4: 1 after its own",
        "reward     1, 0.5 after shaping",
        "group      g: 0.5, -0.5 (mean 0, standard deviation 0.5)",
        "advantage  1 by grpo",
        "logprobs   trained -3, centre of the trust region -3",
        "entropy    0 nats",
        "ratio      1, within the trust region",
        "weight     1, within its bound",
        "loss       -1 x 0.25 / 8 = -0.03125 of its minibatch",
        "trained    yes",
    ]
    as_json = CliRunner().invoke(command, [str(run.path), "g.0", "--token", "2", "--json"])
    assert json.loads(as_json.output)["term"]["divisor"] == 8.0
