"""The user's next message as a verdict: which message is whose, agreement with thumbs, and the refusal to train without it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from judge_endpoint import Endpoint

from areal_sdk import ConfigError, Episode, Outcome, Turn
from areal_sdk.options import validate_options
from areal_sdk.testing import RecordedRun, check_reward, make_episode
from areal_sdk_judge import register_commands
from areal_sdk_judge.certificate import certificate_of, read_certificate, write_certificate
from areal_sdk_judge.reactions import exchanges_of, next_message
from areal_sdk_judge.rewards import close_judges


def reads(prompt: str) -> str:
    """Reads thanks and complaints, and nothing else."""
    said = prompt.partition("next message of the user\n")[2].partition("\n====")[0]
    for word, reaction in (("thanks", "helped"), ("wrong", "failed"), ("huh", "no JSON")):
        if word in said:
            return f'{{"reaction": "{reaction}"}}'
    return '{"reaction": "unclear"}'


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(reads)
    await endpoint.start()
    yield endpoint
    await close_judges()
    await endpoint.stop()


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def session(name: str, *replies: str, rewards: tuple[float | None, ...] = ()) -> Episode:
    """A question, and a reply of the user to each answer but the last; with rewards of turns."""
    turns: list[Turn] = []
    for number, text in enumerate(("What is it?", *replies)):
        parent = number - 1 if number else None
        turns.append(
            Turn(
                *((), (), (), ()),
                message=said("assistant", f"answer {number}"),
                new_messages=(said("user", text),),
                parent=parent,
            )
        )
    given = [reward for reward in rewards if reward is not None]
    outcome = Outcome.scored(sum(given), turn_rewards=rewards) if given else Outcome.abstained()
    return replace(make_episode("x"), id=name, turns=tuple(turns), outcome=outcome)


def test_an_answer_is_paired_with_the_message_that_answers_it() -> None:
    first, second = exchanges_of(session("s", "thanks", "and then?"))
    assert (first.turn, first.question, first.answer) == (0, "What is it?", "answer 0")
    assert first.next_message == "thanks"
    assert (second.question, second.next_message) == ("thanks", "and then?")
    calling = session("s", "thanks")
    tool = replace(calling.turns[1], new_messages=(said("tool", "42"), said("user", "thanks")))
    assert exchanges_of(replace(calling, turns=(calling.turns[0], tool))) == []
    again = replace(calling.turns[1], new_messages=(said("user", "wrong"),))
    (kept,) = exchanges_of(replace(calling, turns=(*calling.turns, again)))
    assert kept.next_message == "thanks", "what came first"
    parts = replace(calling.turns[1], new_messages=(said("user", [{"text": "thanks"}]),))
    (read,) = exchanges_of(replace(calling, turns=(calling.turns[0], parts)))
    assert read.next_message == "thanks"


def certified(path: Path, url: str, *, agreed: int = 30, wrong: int = 0) -> Path:
    pairs: list[tuple[float | None, bool]] = [(float(i % 2), bool(i % 2)) for i in range(agreed)]
    pairs += [(1.0, False)] * wrong
    write_certificate(path, certificate_of(pairs, base_url=url, model="m", min_agreement=0.7))
    return path


async def test_turns_get_the_verdict_of_the_next_message_or_none(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    options = {"agreement": str(certified(tmp_path / "agreement.json", endpoint.url))}
    episodes = [
        session("s", "thanks", "wrong, again", "what else?", "huh?"),
        session("s", "what else?"),
        session("s"),
    ]
    judged, unclear, alone = await check_reward(next_message, episodes, options=options)
    assert judged.turn_rewards == (1.0, 0.0, None, None, None)
    assert (judged.reward, judged.success) == (0.5, False)
    assert judged.metrics == {"judged": 2.0, "unclear": 2.0}
    assert unclear.reward is None
    assert "no next message" in unclear.message
    assert alone.reward is None
    assert "no answer was followed" in alone.message


async def test_a_failed_answer_earns_nothing_from_the_one_that_mends_it(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    options = {"agreement": str(certified(tmp_path / "agreement.json", endpoint.url))}
    mended = session("s", "wrong", "wrong", "what else?", "thanks", "thanks")
    (outcome,) = await check_reward(next_message, [mended], options=options)
    rewards = [reward or 0.0 for reward in outcome.turn_rewards]
    returns = [sum(rewards[turn:]) for turn in range(len(rewards))]
    assert [returns[turn] for turn in (0, 1, 3, 4)] == [0.0, 0.0, 1.0, 1.0]
    assert outcome.turn_rewards[5] is None


SESSIONS = [
    *(session(f"up-{i}", "thanks", rewards=(1.0, None)) for i in range(20)),
    *(session(f"down-{i}", "wrong", rewards=(0.0, None)) for i in range(20)),
    *(session(f"new-{i}", "what else?", rewards=(1.0, None)) for i in range(10)),
    session("last", "thanks", rewards=(None, 1.0)),
    session("unrated", "thanks"),
    replace(
        session("judged", "thanks"),
        outcome=Outcome.scored(1.0, turn_rewards=(1.0, None), metrics={"reward/next_message": 1.0}),
    ),
]
"""Fifty thumbs on answers that the user then answered; one on the last answer; a session without any, and one whose reward
the judge gave."""


async def judged(tmp_path: Path, url: str, *sessions: Episode, **options: str) -> Any:
    recorded = RecordedRun(tmp_path / "run")
    for one in sessions:
        recorded.measure(one, split="live")
    recorded.close()
    return await asyncio.to_thread(_again, tmp_path / "run", url, **options)


def _again(run: Path, url: str, **options: str) -> Any:
    group = click.Group()
    register_commands(group)
    asked = ["judge-messages", str(run), "--base-url", url, "--model", "m"]
    asked += [word for name, value in options.items() for word in (f"--{name}", value)]
    return CliRunner().invoke(group, asked)


async def test_agreement_with_thumbs_is_told_and_certified(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "agreement.json"
    ended = await judged(tmp_path, endpoint.url, *SESSIONS, output=str(file))
    assert ended.exit_code == 0, ended.output
    assert ended.output.splitlines() == [
        "thumbs with a next message  50",
        "judge abstained             0.20 [0.11, 0.33]",
        "agreement                   1.00 [0.91, 1.00] (40 of 40)",
        "beyond chance (kappa)       1.00",
    ]
    assert read_certificate(file).base_url == endpoint.url
    higher = {"output": str(file), "min-agreement": "0.95"}
    ended = await judged(tmp_path / "again", endpoint.url, *SESSIONS, **higher)
    assert "below min_agreement = 0.95" in ended.output
    with pytest.raises(ConfigError, match="not to be trained on"):
        read_certificate(file)


async def test_later_scores_of_users_are_thumbs_too(endpoint: Endpoint, tmp_path: Path) -> None:
    pytest.importorskip("areal_sdk_traces.feedback", reason="no areal-sdk-traces here")
    unrated = [replace(one, outcome=Outcome.abstained()) for one in SESSIONS]
    said = [
        *({"session": f"up-{i}", "scores": {"helpful": 1.0}} for i in range(20)),
        *({"session": f"down-{i}", "scores": {"helpful": 0.0}, "turn": 0} for i in range(20)),
        {"session": "down-0", "scores": {"helpful": 1.0}},
        {"session": "up-0", "scores": {"polite": 0.0}},
        {"session": "last", "scores": {"helpful": 0.0}, "turn": 1},
    ]
    ended = await judged(tmp_path, endpoint.url, *unrated)
    assert ended.exit_code == 1, "nobody posted a reward"
    run = tmp_path / "run"
    (run / "feedback.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    ended = await asyncio.to_thread(_again, run, endpoint.url, score="helpful")
    assert ended.exit_code == 0, ended.output
    first, _, third, _ = ended.output.splitlines()
    assert first == "thumbs with a next message  40"
    assert third.endswith("(40 of 40)"), "a score of a turn counts before one of its session"


async def test_a_judge_may_write_as_long_as_it_is_told_to(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    await judged(tmp_path, endpoint.url, SESSIONS[0], **{"max-tokens": "7"})
    assert endpoint.limits == {7}


def test_a_certificate_is_read_once(tmp_path: Path) -> None:
    file = certified(tmp_path / "agreement.json", "http://127.0.0.1:9/v1")
    silent = session("s")
    for _ in range(2):
        outcome = asyncio.run(next_message(silent, agreement=str(file)))
        assert "no answer was followed" in outcome.message
        file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("sessions", "why"),
    [
        (SESSIONS[:3] + SESSIONS[20:23], "95 % confidence"),
        (SESSIONS[:20], "on one side"),
        (
            [replace(one, outcome=Outcome.scored(float(i % 2))) for i, one in enumerate(SESSIONS)],
            "kappa",
        ),
        (SESSIONS[40:50], "no verdict"),
        ([], "no verdict"),
    ],
    ids=["few", "one side", "as chance", "all unclear", "none"],
)
async def test_a_judge_that_is_not_shown_to_agree_is_refused(
    endpoint: Endpoint, tmp_path: Path, sessions: list[Episode], why: str
) -> None:
    ended = await judged(tmp_path, endpoint.url, *sessions)
    assert ended.exit_code == 1
    assert "do not train on this judge" in ended.output
    assert why in ended.output


def test_a_reward_without_its_certificate_is_refused_before_a_run_starts(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ConfigError) as error:
            validate_options(
                next_message, {"agreement": str(path)}, table="reward.next_message", skip=1
            )
        return str(error.value)

    missing = tmp_path / "missing.json"
    assert f"areal-sdk judge-messages RUN --output {missing}" in refusal(missing)
    bad = certified(tmp_path / "bad.json", "http://127.0.0.1:9/v1", agreed=20, wrong=20)
    assert "the judge 'm' is not to be trained on" in refusal(bad)
    missing.write_text(json.dumps({"agreement": 1}))
    assert "is no certificate" in refusal(missing)
