"""Tasks of Inspect, played by the real package in a Python of its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import areal_sdk
from areal_sdk import ConfigError, Episode, Run, Task
from areal_sdk.testing import RecordedRun, run_agent, tool_call
from areal_sdk.types import OutcomeKind
from areal_sdk_inspect.agent import Inspect
from areal_sdk_inspect.dataset import tasks
from areal_sdk_inspect.library import INSPECT, VERSION

QUIZ = str(Path(__file__).parent / "tasks" / "quiz.py")
VOWELS = Path(__file__).parents[1] / "examples" / "vowels.py"
CAPITALS = ("Paris", "Rome", "Lima", "Cairo")
WORDS = ("pear", "plum", "date", "kiwi")
DEADLINE_S = 300.0


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    """No process outlives its test."""
    yield
    await INSPECT.aclose()


# without Inspect


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name a task of Inspect"),
        ({"task": "a", "held_out": 2.0}, "held_out = 2.0"),
        ({"task": "no_such.py@a"}, "there is no such file"),
        ({"task": "a", "python": "/no/such/python"}, "there is no such program"),
        ({"task": "a", "python": sys.executable}, "No module named 'inspect_ai'"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(tasks("train", **options))


async def test_a_task_of_another_dataset_is_an_error() -> None:
    episode = await run_agent(Inspect(), Task("a", {"question": "?"}), engine=[])
    assert "has question: play tasks of the dataset inspect" in episode.outcome.message


async def test_a_python_without_inspect_says_so() -> None:
    data = {"spec": {"task": "a", "args": {}}, "index": 0, "key": "", "score": "", "roles": {}}
    episode = await run_agent(Inspect(), Task("a", {**data, "python": sys.executable}), engine=[])
    assert episode.outcome.kind is OutcomeKind.ERROR
    assert "No module named 'inspect_ai'" in episode.outcome.message


# with it


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has Inspect."""
    if ready := os.environ.get("AREAL_SDK_INSPECT_PYTHON"):
        return ready
    place = tmp_path_factory.mktemp("inspect")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=DEADLINE_S)
    own = str(place / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", f"inspect_ai=={VERSION}", "openai"]
    ended = subprocess.run(install, capture_output=True, text=True, timeout=1200)
    if ended.returncode:
        pytest.skip(f"Inspect could not be installed: {ended.stderr.strip()[-200:]}")
    return own


def of(name: str, python: str, **options: Any) -> list[Task]:
    options = {"held_out": 1.0, "count": 12, **options}
    return list(tasks("eval", task=f"{QUIZ}@{name}", python=python, **options))


async def played(task: Task, *script: str, **limits: Any) -> Episode:
    return await run_agent(Inspect(), task, engine=list(script), timeout_s=DEADLINE_S, **limits)


async def rewards(tasks: list[Task], scripts: list[tuple[str, ...]]) -> list[float | None]:
    pairs = zip(tasks, scripts, strict=True)
    episodes = await asyncio.gather(*(played(task, *script) for task, script in pairs))
    assert not [one.outcome.message for one in episodes if one.outcome.kind is OutcomeKind.ERROR]
    return [one.reward for one in episodes]


TRUTHS: dict[str, list[tuple[str, ...]]] = {
    "sums": [(f"It is {n + 7}",) for n in range(4)],
    "lands": [(f"It is {city}, of course.",) for city in CAPITALS],
    "letters": [("ANSWER: B",)] * 4,
    "vault": [
        (tool_call("open_shelf", number=shelf), word[::-1]) for shelf, word in enumerate(WORDS)
    ],
    "agent": [
        (tool_call("open_shelf", number=shelf), tool_call("submit", answer=word[::-1]))
        for shelf, word in enumerate(WORDS)
    ],
}
"""The tasks of `quiz.py` that tell right from wrong, with the answers that are right."""
WRONG = {
    "sums": ("It is 5",),
    "lands": ("It is Oslo.",),
    "letters": ("ANSWER: A",),
    "vault": (tool_call("open_shelf", number=0), "pear"),
    "agent": (tool_call("submit", answer="pear"),) * 12,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
async def test_known_answers_earn_the_reward_and_wrong_or_no_answers_earn_none(
    name: str, python: str
) -> None:
    found, truths = of(name, python, count=4), TRUTHS[name]
    assert await rewards(found, truths) == [1.0] * len(truths)
    assert await rewards(found, [WRONG[name]] * len(truths)) == [0.0] * len(truths)
    nothing = [("",) * 12] * len(truths)
    assert await rewards(found, nothing) == [0.0] * len(truths)


@pytest.mark.slow
async def test_solvers_and_tools_are_those_of_the_task(python: str) -> None:
    episode = await played(of("sums", python)[0], "7")
    assert [m["content"] for m in episode.messages] == ["Be short.", "0 + 7?", "7"]
    assert episode.task.id == "sums/sum-0"
    script = [tool_call("jump"), tool_call("open_shelf", word="x"), "raep"]
    episode = await played(of("vault", python)[0], *script)
    said = [str(m["content"]) for m in episode.messages if m["role"] == "tool"]
    assert "jump" in said[0]
    assert "number" in said[1]
    assert (episode.reward, len(episode.turns)) == (1.0, 3)


@pytest.mark.slow
async def test_one_score_counts_and_all_are_metrics(python: str) -> None:
    with pytest.raises(ConfigError, match="the scorers exact, includes, sizes: name one"):
        of("both", python)
    episode = await played(of("both", python, score="includes")[0], "It is Paris.")
    numbers = {"exact": 0.0, "includes": 1.0, "sizes/length": 12.0, "sizes/kind": 0.5}
    assert (episode.reward, episode.outcome.metrics) == (1.0, {**numbers, "sizes/is_short": 0.0})
    episode = await played(of("both", python, score="sizes/kind")[0], "Paris")
    assert episode.reward == 0.5
    episode = await played(of("both", python, score="sizes")[0], "Paris")
    assert "'sizes' is none of the scores exact, includes, sizes/length" in episode.outcome.message


@pytest.mark.slow
async def test_no_verdict_is_no_zero(python: str) -> None:
    task = of("unsure", python)[0]
    assert (await played(task, "Perhaps")).reward == 0.5
    silent = await played(task, "")
    assert (silent.reward, silent.outcome.kind) == (None, OutcomeKind.ABSTAIN)
    strange = await played(task, "a much longer answer than that")
    assert "the score silent is 'strange', which is no number" in strange.outcome.message


@pytest.mark.slow
async def test_the_policy_never_grades_itself(python: str) -> None:
    episode = await played(of("judged", python)[0], "Paris", "GRADE: C")
    assert "No model specified" in episode.outcome.message
    assert len(episode.turns) == 1


@pytest.mark.slow
async def test_a_limit_ends_the_answers_and_the_scorers_judge(python: str) -> None:
    script = [tool_call("open_shelf", number=0)] * 5
    episode = await played(of("vault", python)[0], *script, max_turns=2)
    assert (episode.reward, len(episode.turns), episode.truncated) == (0.0, 2, True)


@pytest.mark.slow
async def test_episodes_play_at_the_same_time_and_one_that_dies_takes_no_other(python: str) -> None:
    (deadly,), found = of("dies", python), of("sums", python)
    dead, *both = await asyncio.gather(
        played(deadly, "Paris"),
        *(played(task, str(n + 7)) for n, task in enumerate(found[:4])),
    )
    assert [one.reward for one in both] == [1.0] * 4
    assert dead.reward is None
    assert "the process of the episode ended with -9" in dead.outcome.message


@pytest.mark.slow
async def test_a_process_that_dies_is_replaced(python: str) -> None:
    task = of("sums", python)[0]
    assert (await played(task, "7")).reward == 1.0
    first = await INSPECT.player(python)
    first._process.kill()
    await first._process.wait()
    assert (await played(task, "7")).reward == 1.0
    assert await INSPECT.player(python) is not first


WAITS = """
import socket
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import solver

@solver
def hang():
    async def solve(state, generate):
        with socket.create_connection(("127.0.0.1", PORT)) as open_until_the_end:
            open_until_the_end.recv(1)
    return solve

@task
def waiting():
    return Task(dataset=[Sample("?")], solver=[hang()], scorer=match())
"""


@pytest.mark.slow
async def test_a_cancelled_episode_ends_its_process(python: str, tmp_path: Path) -> None:
    """The task hangs with an open connection, which closes with its process."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(follow, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        (tmp_path / "waits.py").write_text(WAITS.replace("PORT", str(port)))
        (task,) = tasks("eval", task=str(tmp_path / "waits.py"), python=python, held_out=1.0)
        playing = asyncio.create_task(played(task, "7"))
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await ended.wait()


@pytest.mark.slow
async def test_a_task_that_has_changed_is_an_error(python: str) -> None:
    (task, *_) = of("sums", python)
    changed = Task(task.id, {**task.data, "key": "another"})
    assert "sample 0 is another one now" in (await played(changed, "7")).outcome.message


@pytest.mark.slow
def test_held_out_samples_are_chosen_by_content_or_by_another_task(python: str) -> None:
    def names(split: str, **options: Any) -> set[str]:
        options = {"task": f"{QUIZ}@sums", "python": python, **options}
        return {task.id for task in tasks(split, **options)}

    train, held = names("train", held_out=0.5), names("eval", held_out=0.5)
    assert not train & held
    assert len(train | held) == 20
    eval_args = {"first": 90, "count": 2}
    assert names("eval", eval_args=eval_args) == {"sums/sum-90", "sums/sum-91"}
    assert len(names("train", eval_args=eval_args)) == 20
    assert names("eval", eval_task=f"{QUIZ}@letters") == {f"letters/{n}" for n in range(1, 5)}
    with pytest.raises(ConfigError, match=r"name one, as FILE\.py@NAME"):
        list(tasks("train", task=QUIZ, python=python))


@pytest.mark.slow
def test_a_run_trains_on_a_task(python: str, tmp_path: Path) -> None:
    """Three steps of a model from nothing, whose rewards are the task's own numbers."""
    summary = areal_sdk.train(
        "inspect",
        model="tiny",
        tasks=list(tasks("train", task=str(VOWELS), python=python, held_out=0.0)),
        run={"steps": 3, "dir": str(tmp_path), "name": "run"},
        rollout={"batch": 8, "group_size": 4, "max_new_tokens": 8},
        trainer={"precision": "float32"},
        engine={"dtype": "float32"},
        eval={"before": False, "after": False},
        quiet=True,
    )
    assert summary.steps == 3
    rewards = [row["reward"] for row in Run(tmp_path / "run").episodes()]
    assert len(rewards) >= 24
    assert 0.0 < max(rewards) < 1.0
    assert all(0.0 <= reward <= 1.0 for reward in rewards)


READ_AND_WRITE = """
import sys
from inspect_ai.log import read_eval_log, write_eval_log
log = read_eval_log("log.json")
write_eval_log(log, "log.eval")
write_eval_log(read_eval_log("log.eval"), "written/log.json")
print(len(log.samples), log.results.scores[0].metrics["mean"].value)
"""


@pytest.mark.slow
async def test_a_log_of_a_run_opens_in_inspect_and_comes_back(python: str, tmp_path: Path) -> None:
    """Played episodes -> a log -> Inspect's reader, its archive and its writer -> the same conversations."""
    traces = pytest.importorskip("areal_sdk_traces.command", reason="pip install areal-sdk-traces")

    def command(*words: str) -> str:
        ended = CliRunner().invoke(traces.traces, words, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    recorded = RecordedRun(tmp_path / "run")
    for task, truth in zip(of("agent", python), TRUTHS["agent"], strict=True):
        recorded.measure(await played(task, *truth), split="eval")
    recorded.close()
    log = str(tmp_path / "log.json")
    command("export", str(tmp_path / "run"), "--to", "inspect", "--output", log)
    (tmp_path / "written").mkdir()
    words = [python, "-c", READ_AND_WRITE]
    ended = await asyncio.to_thread(
        subprocess.run, words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.stdout == "4 1.0\n", ended.stderr
    found = [
        {
            row["id"]: (row["messages"], row["tools"], row["scores"])
            for row in map(json.loads, lines)
        }
        for lines in (
            command("import", log, "--from", "inspect").splitlines(),
            command("import", str(tmp_path / "written"), "--from", "inspect").splitlines(),
        )
    ]
    assert len(found[0]) == 4
    assert found[0] == found[1]
    ours = map(json.loads, command(str(tmp_path / "run")).splitlines())
    assert {row["id"]: (row["messages"], row["tools"], row["scores"]) for row in ours} == found[0]
