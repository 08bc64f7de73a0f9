"""Forks of episodes: the turns before the fork are the recorded ones, the others are sampled by the weights asked for.
Readings: the recorded tokens, with the logprobs that other weights give them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import areal_sdk
from areal_sdk import ConfigError, EngineError, Episode, GenerateRequest, Run
from areal_sdk.engine import GenerateResult
from areal_sdk.testing import ScriptedEngine, check_plugin, make_episode
from areal_sdk.types import FinishReason
from areal_sdk_fork.command import fork
from areal_sdk_fork.forking import fork_episode
from areal_sdk_fork.read_command import reread as reread_command
from areal_sdk_fork.read_engine import RereadEngine
from areal_sdk_fork.reading import Reading, as_sampled, changes, reread
from areal_sdk_fork.replay import Replay, chunk_of
from areal_sdk_fork.vocabulary import check_tokenizer

AGENT = Path(__file__).with_name("fork_agent.py")
WORD = "FORK_TEST_WORD"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run with one episode, which the model `tiny` sampled at temperature 1, and the id of the episode."""
    report = areal_sdk.evaluate(
        str(AGENT),
        model="tiny",
        record=True,
        quiet=True,
        engine={"dtype": "float32"},
        eval={"tasks": 1, "temperature": 1.0},
        run={"dir": str(tmp_path_factory.mktemp("runs"))},
    )
    run = Run(report.run_dir)
    (row,) = run.episodes()
    return run, row["id"]


def test_a_fork_keeps_the_turns_before_it_and_is_repeated_by_a_fork_of_its_own(
    recorded: tuple[Run, str],
) -> None:
    run, episode = recorded
    first = fork_episode(run, episode, turn=1, model="tiny", quiet=True)
    old, new = first.recorded.turns, first.forked.turns
    for kept in ("output_tokens", "logprobs", "versions", "message"):
        assert getattr(new[0], kept) == getattr(old[0], kept)
    assert new[1].prompt_tokens == old[1].prompt_tokens
    assert first.first_difference is not None
    said = CliRunner().invoke(
        fork,
        [first.run_dir, first.forked.id, "--turn", "1", "--model", "tiny", "--json"],
        catch_exceptions=False,
    )
    told = json.loads(said.stdout)
    assert told["differs_at"] is None
    assert told["forked"]["turns"] == [turn.text for turn in new]
    again = Run(told["run_dir"]).episode(first.forked.id)
    assert [turn.output_tokens for turn in again.turns] == [turn.output_tokens for turn in new]


def test_an_episode_that_leaves_its_record_says_so(
    recorded: tuple[Run, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, episode = recorded
    monkeypatch.setenv(WORD, "less")
    said = CliRunner().invoke(
        fork, [str(run.path), episode, "--turn", "1", "--model", "tiny"], catch_exceptions=False
    )
    assert said.exit_code == 1
    assert "the episode left its record after 1 of 1 replayed turns" in said.stdout


@pytest.mark.long
def test_a_checkpoint_repeats_what_its_evaluation_recorded(tmp_path: Path) -> None:
    settings = {
        "model": "tiny",
        "run.dir": tmp_path,
        "run.name": "run",
        "run.steps": 2,
        "run.checkpoint_every": 1,
        "rollout.batch": 16,
        "rollout.group_size": 4,
        "engine.dtype": "float32",
        "trainer.precision": "float32",
        "trainer.learning_rate": 1e-2,
        "eval.before": "false",
        "eval.after": "true",
        "eval.tasks": 2,
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    trained = subprocess.run(
        [sys.executable, "-m", "areal_sdk", "train", str(AGENT), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert trained.returncode == 0, trained.stderr
    run = Run(tmp_path / "run")
    rows = run.episodes("split == eval and version == 2")
    assert rows
    last = str(run.path / "checkpoints/step-000002")
    for row in rows:
        for turn in (0, 1):
            made = fork_episode(run, row["id"], turn=turn, model=last, quiet=True)
            assert made.first_difference is None
            assert logprobs(made.forked) == pytest.approx(logprobs(made.recorded), abs=1e-4)
    made = fork_episode(run, rows[0]["id"], turn=0, model="tiny", quiet=True)
    assert logprobs(made.forked) != pytest.approx(logprobs(made.recorded), abs=1e-4)
    begin, end = reread(run, rows[0]["id"], quiet=True)
    assert (begin.model, end.model) == ("tiny", "final")
    assert sampled(end) == pytest.approx(sampled(as_sampled(made.recorded)), abs=1e-4)
    changed = changes(made.recorded, begin, end)
    assert abs(changed[0].after - changed[0].before) > 0.01


def logprobs(episode: Episode) -> list[float]:
    """The logprobs that the first sampled tokens of the turns had."""
    return [turn.logprobs[0] for turn in episode.turns]


def sampled(reading: Reading) -> list[float]:
    return [logprob for turn in reading.turns for logprob in turn.logprobs]


def test_the_weights_that_sampled_an_episode_read_it_as_it_was_sampled(
    recorded: tuple[Run, str],
) -> None:
    run, episode = recorded
    said = CliRunner().invoke(
        reread_command, [str(run.path), episode, "--model", "tiny"], catch_exceptions=False
    )
    turns = run.episode(episode).turns
    num_tokens = sum(len(turn.output_tokens) for turn in turns)  # an answer may end by itself
    assert f"{num_tokens} tokens: logprob" in said.stdout
    assert "tiny would say" in said.stdout
    (line,) = (run.path / "readings.jsonl").read_text().splitlines()
    read = json.loads(line)
    assert (read["episode"], read["model"]) == (episode, "tiny")
    for turn, of_turn in zip(turns, read["turns"], strict=True):
        assert of_turn["logprobs"] == pytest.approx(turn.logprobs, abs=1e-4)
        assert [len(at) for at in of_turn["likeliest"]] == [4] * len(turn.output_tokens)


def test_an_episode_without_weights_to_compare_names_the_cure(recorded: tuple[Run, str]) -> None:
    run, episode = recorded
    with pytest.raises(ConfigError, match="has no weights yet: name the models with --model"):
        reread(run, episode)


def vocabulary(directory: Path, *words: str) -> Path:
    """A model directory that has a tokenizer of whole words alone."""
    directory.mkdir()
    model = {"type": "WordLevel", "vocab": {w: n for n, w in enumerate(words)}, "unk_token": "?"}
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    return directory


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_model_with_another_tokenizer_is_refused(tmp_path: Path, is_kept: bool) -> None:
    ours = vocabulary(tmp_path / "ours", "?", "yes", "no")
    others = vocabulary(tmp_path / "others", "?", "no", "yes")
    said = {"output_tokens": (1,), "logprobs": (-0.5,), "versions": (0,)}
    turn = replace(make_episode("yes").turns[0], new_tokens=(), **said)  # type: ignore[arg-type]
    recorded = ours / "tokenizer.json" if is_kept else tmp_path / "none"
    check_tokenizer([turn], ours, recorded=recorded)
    with pytest.raises(ConfigError, match=r"has another tokenizer than the run: .* in the record"):
        check_tokenizer([turn], others, recorded=recorded)


def test_a_mark_of_the_chat_template_inside_an_answer_is_no_other_tokenizer(tmp_path: Path) -> None:
    marked = vocabulary(tmp_path / "marked", "?", "yes", "no", "<mark>")
    whole = json.loads((marked / "tokenizer.json").read_text())
    mark = {"id": 3, "content": "<mark>", "special": True}
    mark |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    (marked / "tokenizer.json").write_text(json.dumps(whole | {"added_tokens": [mark]}))
    said = {"output_tokens": (1, 3, 2), "logprobs": (-0.5,) * 3, "versions": (0,) * 3}
    turn = replace(make_episode("yes no").turns[0], new_tokens=(), **said)  # type: ignore[arg-type]
    check_tokenizer([turn], marked, recorded=tmp_path / "none")


class Biased(ScriptedEngine):
    """An engine whose logprobs are those of the biased choice, or one that has no biases."""

    token: int | None = None

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        (forced,) = request.sampling.logit_bias
        return GenerateResult((self.token or forced,), (0.0,), (0,), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("token", "told"), [(None, "every token is certain"), (7, "this engine has no logit_bias")]
)
async def test_an_engine_that_cannot_read_is_refused_and_not_believed(
    tmp_path: Path, token: int | None, told: str
) -> None:
    behind = Biased()
    behind.token = token
    turn = replace(make_episode("yes it is").turns[0], new_tokens=(1,))
    engine = RereadEngine(behind, [turn], tmp_path / "turns")
    with pytest.raises(EngineError, match=told):
        await engine.generate(GenerateRequest(turn.prompt_tokens, 8))
    assert not (tmp_path / "turns").exists()


def test_a_turn_that_the_episode_does_not_have_is_refused(
    recorded: tuple[Run, str],
) -> None:
    run, episode = recorded
    with pytest.raises(ConfigError, match=r"--turn 2: \S+ has the turns 0 to 1"):
        fork_episode(run, episode, turn=2, model="tiny", quiet=True)


def test_branches_are_replayed_in_any_order() -> None:
    one, two, three = (
        replace(make_episode(word).turns[0], new_tokens=(number,))
        for number, word in enumerate(("a", "b", "c"))
    )
    replay = Replay([one, two, three], 2)
    assert replay.answer(GenerateRequest((1,), 8)) == two
    assert replay.answer(GenerateRequest((0,), 8)) == one
    assert replay.answer(GenerateRequest((2,), 8)) is None
    assert replay.answer(GenerateRequest((9,), 8)) is None, "after the fork nothing is compared"
    with pytest.raises(EngineError, match="after 0 of 2 replayed turns"):
        Replay([one, two, three], 2).answer(GenerateRequest((9,), 8))


def test_a_replayed_answer_ends_as_the_recorded_one() -> None:
    turn = replace(make_episode("yes").turns[0], finish_reason=FinishReason.STOP)
    last = turn.output_tokens[-1]
    request = GenerateRequest((1,), 8, stop=("\n",))
    assert chunk_of(turn, request, [last]).stop_matched == last
    assert chunk_of(turn, request, []).stop_matched == "\n"
    cut = replace(turn, finish_reason=FinishReason.LENGTH)
    assert chunk_of(cut, request, [last]).stop_matched is None


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert await check_plugin("areal-sdk-fork") is not None
