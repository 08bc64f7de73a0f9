"""A server on one machine, its model on a second, its client on a third."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.loop.runs import DEADLINE_S, told
from tests.netns.network import Machine, machines, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := why_not()), reason=why or "can")]

ASK = (
    "import openai, sys\n"
    "url, key = sys.argv[1:3]\n"
    f"client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout={DEADLINE_S})\n"
    "messages = [{'role': 'user', 'content': 'hello'}]\n"
    "print('asking', flush=True)\n"
    "answer = client.chat.completions.create(model='tiny', messages=messages, max_tokens=int(sys.argv[3]))\n"
    "print('sampled', answer.usage.completion_tokens)"
)
KEY = "sk-of-both-servers"
SHORT_S = 3.0


def serve(machine: Machine, *arguments: str, **env: str) -> str:
    """Start a server there; its address."""
    command = (sys.executable, "-m", "areal_sdk", "serve", "--host", machine.address)
    process = machine.start(
        *(*command, "--admin-key", KEY, *arguments),
        env={"OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return told(process.stdout, r"serving \S+ at (\S+)")


def ask(machine: Machine, url: str, *, tokens: int) -> "subprocess.Popen[str]":
    asking = machine.start(
        *(sys.executable, "-c", ASK, url, KEY, str(tokens)), stdout=subprocess.PIPE
    )
    assert asking.stdout is not None
    told(asking.stdout, "(asking)")
    return asking


def test_a_client_is_answered_over_two_links_also_when_one_was_down_meanwhile(
    tmp_path: Path,
) -> None:
    with machines(3) as (here, engine, client):
        model_url = serve(engine, "--model", "tiny")
        runs = ("--set", f"run.dir={tmp_path}")
        url = serve(here, "--upstream", model_url, *runs, AREAL_SDK_UPSTREAM_KEY=KEY)
        assert here.address in url
        assert engine.address in model_url
        assert "sampled 5" in ask(client, url, tokens=5).communicate(timeout=DEADLINE_S)[0]
        asking = ask(client, url, tokens=400)
        engine.cut()
        time.sleep(SHORT_S)
        engine.heal()
        assert "sampled" in asking.communicate(timeout=DEADLINE_S)[0]
