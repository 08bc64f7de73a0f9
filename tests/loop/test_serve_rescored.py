"""Every token that callers of `serve --learn` were answered with, re-scored under the version it names."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.loop.learning_server import serving
from tests.loop.rescore import largest_error
from tests.loop.runs import AGENT, finish, run_dir

NUM_THREADS, NUM_TURNS, NUM_TOKENS = 10, 3, 40
ENDED = (openai.APIError, anthropic.APIError)


def chat(client: openai.OpenAI, _: anthropic.Anthropic, history: list[Any]) -> str:
    answer = client.chat.completions.create(model="tiny", messages=history, max_tokens=NUM_TOKENS)
    return answer.choices[0].message.content or ""


def messages(_: openai.OpenAI, client: anthropic.Anthropic, history: list[Any]) -> str:
    answer = client.messages.create(model="tiny", messages=history, max_tokens=NUM_TOKENS)
    return "".join(block.text for block in answer.content if block.type == "text")


def responses(client: openai.OpenAI, _: anthropic.Anthropic, history: list[Any]) -> str:
    answer = client.responses.create(model="tiny", input=history, max_output_tokens=NUM_TOKENS)
    return answer.output_text


WIRES: tuple[Callable[[openai.OpenAI, anthropic.Anthropic, list[Any]], str], ...] = (
    chat,
    messages,
    responses,
)


def play(url: str, key: str, number: int) -> None:
    """One conversation of some turns on a wire of its own, and its reward."""
    with openai.OpenAI(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0) as control:
        opened: Any = control.post("/control/sessions", body={"group_size": 1}, cast_to=object)
    session = opened["sessions"][0]
    base, own_key = session["base_url"], session["api_key"]
    with (
        openai.OpenAI(base_url=base, api_key=own_key, max_retries=0) as client,
        anthropic.Anthropic(
            base_url=base.removesuffix("/v1"), api_key=own_key, max_retries=0
        ) as other,
    ):
        history: list[Any] = []
        for turn in range(NUM_TURNS):
            history.append({"role": "user", "content": f"{number} {turn}"})
            text = WIRES[number % len(WIRES)](client, other, history)
            history.append({"role": "assistant", "content": text or "-"})
        client.post("/reward", body={"reward": float(number % 2)}, cast_to=object)


def keep_playing(url: str, key: str, thread: int, errors: list[BaseException]) -> None:
    """Play until the server has taken its steps."""
    number, has_played = thread, False
    while True:
        try:
            play(url, key, number)
        except ENDED as error:
            if not has_played:
                errors.append(error)
            return
        number, has_played = number + NUM_THREADS, True


@pytest.mark.slow
def test_every_token_of_ten_callers_rescores_under_the_version_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    monkeypatch.setenv("AREAL_TEST_WEIGHTS", str(weights))
    errors: list[BaseException] = []
    arguments = ("--steps", "12", "--plugin", str(AGENT))
    settings = {"rollout__batch": 8, "rollout__max_new_tokens": NUM_TOKENS}
    with serving(tmp_path, *arguments, **settings) as (server, url, key):
        threads = [
            threading.Thread(target=keep_playing, args=(url, key, thread, errors))
            for thread in range(NUM_THREADS)
        ]
        for thread in threads:
            thread.start()
        output = finish(server)
        for thread in threads:
            thread.join(timeout=60.0)
    assert errors == []
    assert "12 steps" in output
    report = largest_error(run_dir(tmp_path), weights)
    assert len(report.versions) > 5
    assert report.num_mid_turn_changes > 0, "no update met a turn in flight"
    assert report.num_tokens > 4000
    assert report.max_error < 1e-4, report
