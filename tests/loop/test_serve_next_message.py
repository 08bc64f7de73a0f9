"""Feedback that nobody posted: a judge of users' next messages is compared with thumbs, and then a server learns from it."""

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openai import OpenAI

from areal_sdk.cli.main import cli
from areal_sdk.telemetry import RunDir
from tests.loop.runs import SCRIPTED, finish, refused, start_command, told

SETTINGS = """
model = "tiny"
[run]
steps = 1
checkpoint_every = 0
[rollout]
batch = 4
[serve]
reward_wait_s = 0.2
[rewards]
next_message = 1.0
[reward.next_message]
agreement = "agreement.json"
"""


class Judge(BaseHTTPRequestHandler):
    """Reads thanks and complaints."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = body["messages"][0]["content"].partition("next message of the user\n")[2]
        said = said.partition("\n====")[0]
        reaction = {"thanks": "helped", "wrong": "failed"}.get(said, "unclear")
        message = {"role": "assistant", "content": json.dumps({"reaction": reaction})}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        raw = json.dumps({**answer, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def judge() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def play(url: str, key: str, said: str, thumb: float | None = None) -> None:
    """A question, an answer, the user's next message and a second answer; perhaps a thumb for the first answer."""
    with OpenAI(base_url=url, api_key=key, max_retries=0) as caller:
        history: list[Any] = [{"role": "user", "content": "hi"}]
        for reply in (said, ""):
            answer = caller.chat.completions.create(model="m", messages=history, max_tokens=4)
            text = answer.choices[0].message.content
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": reply}]
            if reply and thumb is not None:
                body = {"turn": answer.id, "reward": thumb}
                caller.post("/reward", body=body, cast_to=object)
        caller.post("/end", cast_to=object)


@pytest.mark.long
def test_a_server_learns_from_next_messages_once_the_judge_agrees_with_thumbs(
    tmp_path: Path, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--port", "0", *SCRIPTED, "--set", f"run.dir={tmp_path}")
    Path("serve.toml").write_text(SETTINGS)
    learning = ("serve", "--learn", "--config", "serve.toml", *options)
    assert "areal-sdk judge-messages RUN" in refused(*learning)

    server = start_command(
        "serve", "--record", "--model", "tiny", *options, "--set", "run.name=run"
    )
    assert server.stdout is not None
    url, key = told(server.stdout, r"serving tiny at (\S+)"), told(server.stdout, r"key: (\S+)")
    for number in range(12):
        said, thumb = (("thanks", 1.0), ("wrong", 0.0), ("another thing", 1.0))[number % 3]
        play(url, f"{key}/{number}", said, thumb)
    server.send_signal(signal.SIGINT)
    finish(server)
    compared = ("judge-messages", "run", "--base-url", judge, "--model", "m")
    written = ("--output", "agreement.json")
    ended = CliRunner().invoke(cli, [*compared, *written])
    assert ended.exit_code == 1, "eight of eight, and the interval begins at 0.68"
    assert "judge abstained             0.33 [" in ended.output
    assert "not to be trained on" in refused(*learning)
    lower = ("--min-agreement", "0.6")
    assert CliRunner().invoke(cli, [*compared, *written, *lower]).exit_code == 0

    server = start_command(*learning, "--set", "run.name=learnt")
    assert server.stdout is not None
    url, key = told(server.stdout, r"serving tiny at (\S+)"), told(server.stdout, r"key: (\S+)")
    for number, said in enumerate(("another thing", "thanks", "wrong", "thanks", "wrong")):
        play(url, f"{key}/{number}", said)
    output = finish(server)
    assert "trained 4 of 5 episodes" in output
    learnt = RunDir.open(tmp_path / "learnt")
    verdicts = [learnt.find_episode(f"admin/{n}").episode.outcome for n in range(5)]
    assert [one.turn_rewards for one in verdicts[1:]] == [(1.0, None), (0.0, None)] * 2
    assert verdicts[0].reward is None
    assert (learnt.read_ledger() or {})["trained"] == 4
