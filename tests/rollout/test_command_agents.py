"""Agents that are commands: what they get, how they give a verdict, and what is left of them."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.process.programs.program import Programs
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.types import Episode, ErrorKind, OutcomeKind
from tests.rollout.playing import play
from tests.rollout.programs import ASK, EXAMPLES
from tests.toolbox.processes import is_alive
from tests.toolbox.waiting import wait_until

LOG = "agent.log"

Reward = Literal["output", "exit_code"]


async def played(
    script: str, model_dir: Path, *, said: str = "4", reward: Reward = "output", **options: Any
) -> Episode:
    """An episode of a shell script, or of `python ...` where it begins so."""
    command = CommandAgent(f"sh -c {shlex.quote(script)}", reward=reward)
    command.keep_output(model_dir / "logs")
    options.setdefault("infra_retries", 0)
    return await play(command, [said] * 3, model_dir, **options)


def pid_in(file: Path) -> int:
    return int(file.read_text(encoding="utf-8"))


def log_of(model_dir: Path) -> str:
    return (model_dir / "logs" / LOG).read_text()


async def test_a_command_gets_task_and_session_and_prints_its_verdict(model_dir: Path) -> None:
    episode = await played(ASK, model_dir)
    assert (episode.reward, episode.outcome.success) == (1.0, True)
    assert episode.outcome.metrics == {"calls": 2.0}
    assert [turn.text for turn in episode.turns] == ["4", "4"]
    assert '{"said": ["4", "4"]}' in log_of(model_dir)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_a_shell_script_posts_its_reward(model_dir: Path) -> None:
    agent = CommandAgent(f"sh {EXAMPLES / 'vowels.sh'}")
    episode = await play(agent, "aeux", model_dir)
    assert episode.outcome.reward == 0.75, episode.outcome


VERDICTS = {
    "two lines": ("echo '{\"reward\": 0.1}'; echo '{\"reward\": 0.5}'; echo '{\"log\": 1}'", 0.5),
    "true": ("echo '{\"reward\": true}'", 1.0),
    "a line separator in a text": (
        """echo '{"reward": 0.1}'; echo '{"reward": 0.5, "said": "a\u2028b\u0085c"}'""",
        0.5,
    ),
    "a progress bar before it": ("""printf '9 %%\\r{"reward": 0.5}\\r\\n'""", 0.5),
}


@pytest.mark.parametrize(("script", "reward"), VERDICTS.values(), ids=VERDICTS)
async def test_the_last_json_line_with_a_reward_counts(
    script: str, reward: float, model_dir: Path
) -> None:
    assert (await played(script, model_dir)).reward == reward


@pytest.mark.parametrize("script", ["true", "echo '{\"reward\": null}'"])
async def test_a_missing_verdict_is_no_zero(script: str, model_dir: Path) -> None:
    outcome = (await played(script, model_dir)).outcome
    assert (outcome.kind, outcome.reward) == (OutcomeKind.ABSTAIN, None)


async def test_a_command_without_a_verdict_is_told_what_to_print(model_dir: Path) -> None:
    outcome = (await played("echo hi", model_dir)).outcome
    assert outcome.message.startswith("command 'sh' printed no verdict and no reward is configured")
    assert 'print a line {"reward": 0.5}, or name a reward function' in outcome.message


FAILURES = {
    "an exit code": ("echo no model >&2; exit 3", "exit code 3: no model"),
    "an exit code after a reward": ("echo '{\"reward\": 1}'; exit 1", "exit code 1"),
    "a crash": ("kill -SEGV $$", "killed by SIGSEGV"),
    "a text as its reward": ('echo \'{"reward": "high"}\'', "a number or null is a reward"),
    "not a number": ("echo '{\"reward\": NaN}'", "finite"),
    "a success in words": ('echo \'{"reward": 1, "success": "yes"}\'', "true or false"),
    "endless output": ("yes", "it wrote more than 64 MiB"),
}


@pytest.mark.parametrize(("script", "message"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_is_an_error_of_the_agent(
    script: str, message: str, model_dir: Path
) -> None:
    outcome = (await played(script, model_dir)).outcome
    assert (outcome.error, outcome.reward) == (ErrorKind.AGENT, None)
    assert message in outcome.message


async def test_an_error_names_the_log_of_what_it_wrote(model_dir: Path) -> None:
    episode = await played("echo to stdout; echo to stderr >&2; exit 4", model_dir)
    assert str(model_dir / "logs" / LOG) in episode.outcome.message
    assert f"--- {episode.id}: exit code 4" in log_of(model_dir)
    assert "[stdout]\nto stdout\n[stderr]\nto stderr" in log_of(model_dir)


@pytest.mark.parametrize("script", ["kill -KILL $$", "sh -c 'kill -KILL $$'; exit $?"])
async def test_a_kill_from_outside_is_a_fault_of_the_machine(script: str, model_dir: Path) -> None:
    outcome = (await played(script, model_dir, on_agent_error=0.0)).outcome
    assert (outcome.error, outcome.reward) == (ErrorKind.INFRASTRUCTURE, None)


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0), (2, None)])
async def test_exit_codes_are_verdicts_only_where_asked(
    code: int, reward: float | None, model_dir: Path
) -> None:
    episode = await played(f"exit {code}", model_dir, reward="exit_code")
    assert episode.reward == reward
    assert (episode.outcome.error is ErrorKind.AGENT) == (reward is None)


ORPHANS = """
setsid sh -c 'echo $$ > {pids}/1; exec sleep 600' &
sh -c 'trap "" TERM; echo $$ > {pids}/2; while true; do sleep 600; done' &
while [ ! -s {pids}/2 ] || [ ! -s {pids}/1 ]; do sleep 0.01; done
"""


@pytest.mark.parametrize("how", ["it ends", "its deadline passes"])
async def test_nothing_that_a_command_starts_outlives_it(
    how: str, model_dir: Path, tmp_path: Path
) -> None:
    script = ORPHANS.format(pids=tmp_path)
    if how == "it ends":
        outcome = (await played(script + "echo '{\"reward\": 1}'", model_dir)).outcome
        assert outcome.reward == 1.0
    else:
        outcome = (await played(script + "sleep 600", model_dir, episode_timeout_s=8.0)).outcome
        assert outcome.error is ErrorKind.TIMEOUT
        assert str(model_dir / "logs" / LOG) in outcome.message
    assert not is_alive(pid_in(tmp_path / "1"))
    assert not is_alive(pid_in(tmp_path / "2"))


def test_what_a_killed_process_left_running_is_ended(tmp_path: Path) -> None:
    """The process that ran it is killed, so nobody could clean up but the guard."""
    code = (
        "import asyncio, pathlib\n"
        "from areal_sdk.process.programs.program import Programs\n"
        f"words = ['sh', '-c', 'echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600']\n"
        "asyncio.run(Programs().run(words, env={}, stdin=pathlib.Path('/dev/null')))\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", code])
    wait_until((tmp_path / "pid").exists)
    assert is_alive(pid_in(tmp_path / "pid"))
    runner.kill()
    runner.wait()
    wait_until(lambda: not is_alive(pid_in(tmp_path / "pid")))


async def test_an_output_is_read_to_its_end(tmp_path: Path) -> None:
    end = await Programs().run(
        ["sh", "-c", "seq 200000; echo last"], env={}, stdin=Path("/dev/null")
    )
    assert end.stdout.endswith("200000\nlast\n")
    assert end.code == 0


REFUSED = {
    "nothing": ("", "is empty"),
    "no program": ("no-such-program x", "'no-such-program' is no program here"),
    "no file": ("python3 -u no-such-agent.py --fast", "there is no file 'no-such-agent.py' in"),
    "a pipe": ("sh a.sh | tee log", "no shell reads '|': write sh -c 'sh a.sh | tee log'"),
    "an open quote": ("sh -c 'a", "close the quotes"),
}


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_a_command_that_could_not_run_is_refused_before_the_run(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        CommandAgent(line)
    assert message in str(refusal.value)


@pytest.mark.parametrize("line", ["sh -c 'cat x.sh'", "python3 -m agent", "env X=1 sh /in/it.sh"])
def test_words_that_name_no_file_of_this_machine_are_left_alone(line: str) -> None:
    CommandAgent(line)
