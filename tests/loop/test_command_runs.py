"""`areal-sdk train --command`: an agent that is no Python, trained for real."""

import json
import shutil
from pathlib import Path

import pytest

from tests.loop.runs import SMALL, finish, run_dir, start_command

AGENT = """
const { data, model } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { OPENAI_BASE_URL: url, OPENAI_API_KEY: key } = process.env;
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
const messages = [{ role: "user", content: data.prompt }];
const body = JSON.stringify({ model, messages, max_tokens: 12 });
fetch(`${url}/chat/completions`, { method: "POST", headers, body })
  .then((answer) => answer.json())
  .then(({ choices: [{ message }] }) => {
    if (data.prompt === "fail") throw new Error("I cannot do that");
    const ascii = [...message.content].filter((letter) => letter < "\\x80").length;
    console.log(JSON.stringify({ reward: ascii / Math.max(1, message.content.length) }));
  });
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_command_is_trained_and_its_failures_are_kept(tmp_path: Path) -> None:
    (tmp_path / "agent.js").write_text(AGENT)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("a", "b", "fail")))
    settings = SMALL | {"run.dir": tmp_path, "run.name": "run", "run.steps": 2, "rollout.batch": 8}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = f"node {tmp_path / 'agent.js'}"
    output = finish(
        start_command("train", "--command", command, "--tasks", str(tasks), *map(str, options))
    )
    run = run_dir(tmp_path)
    steps = [event for event in run.read_metrics() if event["kind"] == "step"]
    assert [step["version"] for step in steps] == [1, 2], output
    assert all(step["train/num_trained"] > 0 for step in steps)
    log = (run.logs / "agent.log").read_text()
    assert "I cannot do that" in log  # its groups begin before those that the second step needs
    assert run.read_config()["command"] == command
    assert "exit code 0" in log
