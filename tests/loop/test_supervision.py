"""An engine that dies is started again, whoever is using it; what waits for it goes on."""

import os
import re
import signal
import time
from pathlib import Path
from types import FunctionType

import openai
import pytest

from areal_sdk.backends.supervised import SupervisedEngine
from areal_sdk.engine import InferenceEngine
from tests.loop.learning_server import RESTARTED, kill_engine
from tests.loop.runs import (
    AGENT,
    DEADLINE_S,
    children_of,
    finish,
    run_dir,
    start_command,
    start_training,
    told,
    wait_for_steps,
)


@pytest.mark.long
def test_a_killed_engine_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    process = start_training(tmp_path, run__steps=8)
    wait_for_steps(process, tmp_path, 2)
    kill_engine(process.pid)
    output = finish(process)
    assert RESTARTED in output
    assert len(run_dir(tmp_path).read_steps()) == 8
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    assert books["trained"] == 8 * 16


@pytest.mark.slow
def test_one_death_with_many_episodes_in_flight_and_no_retries_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    process = start_training(
        tmp_path,
        run__steps=6,
        rollout__max_inflight=128,
        rollout__max_staleness=12,
        rollout__infra_retries=0,
        engine__max_slots=128,
    )
    wait_for_steps(process, tmp_path, 2)
    kill_engine(process.pid)
    output = finish(process)
    assert RESTARTED in output
    assert "in a row gave no group" not in output
    assert len(run_dir(tmp_path).read_steps()) == 6


@pytest.mark.slow
def test_an_engine_that_dies_in_the_warm_up_is_back_for_its_weights(tmp_path: Path) -> None:
    demonstrations = tmp_path / "demonstrations.jsonl"
    demonstrations.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    process = start_training(
        tmp_path, run__steps=2, sft__steps=120, sft__demonstrations=demonstrations
    )
    wait_for_steps(process, tmp_path, 1, kind="sft")
    kill_engine(process.pid)
    output = finish(process)
    assert RESTARTED in output
    assert len(run_dir(tmp_path).read_steps()) == 2


def test_an_engine_that_dies_in_an_evaluation_is_started_again(tmp_path: Path) -> None:
    agent = tmp_path / "loud.py"
    agent.write_text(AGENT.read_text().replace("sampled: list", 'print("playing"); sampled: list'))
    process = start_command("eval", str(agent), "--model", "tiny", "--num-tasks", "64")
    assert process.stdout is not None
    told(process.stdout, r"(playing)")
    kill_engine(process.pid)
    output = finish(process)
    assert RESTARTED in output
    assert "infrastructure" not in output, "an episode was lost"


def test_serve_answers_again_after_its_engine_died() -> None:
    server = start_command("serve", "--model", "tiny", "--port", "0")
    assert server.stdout is not None
    try:
        url = told(server.stdout, r"serving tiny at (\S+)")
        key = told(server.stdout, r"key: (\S+)")
        kill_engine(server.pid)
        told(server.stdout, rf"({RESTARTED})")
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=DEADLINE_S) as client:
            answer = client.chat.completions.create(  # asked while it is down: it waits
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
    finally:
        server.send_signal(signal.SIGINT)
    finish(server)


@pytest.mark.slow
def test_a_trainer_that_dies_in_the_evaluation_before_ends_the_run_at_once(tmp_path: Path) -> None:
    process = start_training(tmp_path, eval__before=True, eval__tasks=64, eval__samples=64)
    deadline = time.monotonic() + DEADLINE_S
    while not list((tmp_path / "run" / "episodes").glob("*.index")) or not next(
        run_dir(tmp_path).list_episodes(), None
    ):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process, code=1)
    assert re.search(r"trainer-0 .*was killed by SIGKILL", output), output


def test_every_part_of_the_contract_is_passed_on() -> None:
    ours = {
        name
        for name, part in vars(InferenceEngine).items()
        if isinstance(part, property | FunctionType) and not name.startswith("_")
    }
    assert ours <= set(vars(SupervisedEngine)), (
        "it would answer with the contract's default instead"
    )
