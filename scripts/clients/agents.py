"""Command-line agents: what each is installed from, how it is told where the model is, and its words.

Each reads files with a tool of its own, answers, and is asked once more in a second process that goes
on from the first. The policy is scripted. Telemetry, updates and lists of models are switched off.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from environments import node, npm_environment
from loopback import only_port
from served import run

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.session import Session

TIMEOUT_S = 120
FILES = ("one.txt", "two.txt", "three.txt")
QUESTIONS = ("What is in one.txt and two.txt?", "And in three.txt?")


@dataclass(frozen=True)
class Place:
    """The directories in which an agent works, and the session that it speaks to."""

    home: Path
    work: Path
    base_url: str
    key: str

    @property
    def root_url(self) -> str:
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True)
class CliAgent:
    name: str
    """The package."""
    version: str
    endpoint: str
    program: str
    """The executable, below node_modules."""
    ask: Callable[[str], Sequence[str]]
    """The arguments of the first question."""
    ask_again: Callable[[str], Sequence[str]]
    read: Callable[[Path], tuple[str, dict[str, object]]]
    """The call of its own tool that reads a file."""
    env: Callable[[Place], Mapping[str, str]]
    files: Callable[[Place], Mapping[str, object]] = field(default=lambda place: {})
    """Settings, by path below its home directory."""
    is_script: bool = False
    """Whether the agent runs in Node."""


def _codex_settings(place: Place) -> dict[str, object]:
    lines = [
        'model = "policy"',
        'model_provider = "gateway"',
        'approval_policy = "never"',
        'sandbox_mode = "danger-full-access"',
        "check_for_update_on_startup = false",
        "analytics.enabled = false",
        "[model_providers.gateway]",
        'name = "gateway"',
        f'base_url = "{place.base_url}"',
        'env_key = "API_KEY"',
        'wire_api = "responses"',
    ]
    return {".codex/config.toml": "\n".join(lines)}


def _opencode_settings(place: Place) -> dict[str, object]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": place.base_url, "apiKey": place.key},
        "models": {"policy": {"name": "policy"}},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "gateway/policy",
        "provider": {"gateway": provider},
    }
    return {".config/opencode/opencode.json": settings}


AGENTS = [
    CliAgent(
        name="@openai/codex",
        version="0.169.0",
        endpoint="responses",
        program=".bin/codex",
        is_script=True,
        ask=lambda question: ["exec", "--skip-git-repo-check", question],
        ask_again=lambda question: ["exec", "--skip-git-repo-check", "resume", "--last", question],
        read=lambda file: ("exec_command", {"cmd": f"cat {file}"}),
        env=lambda place: {"API_KEY": place.key},
        files=_codex_settings,
    ),
    CliAgent(
        name="@anthropic-ai/claude-code",
        version="2.1.330",
        endpoint="messages",
        program="@anthropic-ai/claude-code-linux-x64/claude",
        ask=lambda question: ["-p", question, "--allowedTools", "Read"],
        ask_again=lambda question: ["-p", "--continue", question, "--allowedTools", "Read"],
        read=lambda file: ("Read", {"file_path": str(file)}),
        env=lambda place: {
            "ANTHROPIC_BASE_URL": place.root_url,
            "ANTHROPIC_API_KEY": place.key,
            "ANTHROPIC_MODEL": "policy",
            "ANTHROPIC_SMALL_FAST_MODEL": "policy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    CliAgent(
        name="@qwen-code/qwen-code",
        version="0.24.4",
        endpoint="chat",
        program=".bin/qwen",
        is_script=True,
        ask=lambda question: ["--auth-type", "openai", "-p", question],
        ask_again=lambda question: ["--auth-type", "openai", "--continue", "-p", question],
        read=lambda file: ("read_file", {"file_path": str(file)}),
        env=lambda place: {
            "OPENAI_BASE_URL": place.base_url,
            "OPENAI_API_KEY": place.key,
            "OPENAI_MODEL": "policy",
        },
        files=lambda place: {
            ".qwen/settings.json": {
                "general": {"enableAutoUpdate": False},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            }
        },
    ),
    CliAgent(
        name="opencode-ai",
        version="1.18.33",
        endpoint="chat",
        program="opencode-linux-x64/bin/opencode",
        ask=lambda question: ["run", question],
        ask_again=lambda question: ["run", "--continue", question],
        read=lambda file: ("read", {"filePath": str(file)}),
        env=lambda place: {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        files=_opencode_settings,
    ),
]


async def play(agent: CliAgent, gateway: Gateway, session: Session, work: Path) -> tuple[int, str]:
    """The exit code of the first question that failed, and what was printed."""
    packages = npm_environment(
        f"agent-{agent.name.rpartition('/')[2]}", f"{agent.name}@{agent.version}"
    )
    command = [str(packages / "node_modules" / agent.program)]
    if agent.is_script:
        command = [str(node()), *command]
    port = int(gateway.base_url.rpartition(":")[2].partition("/")[0])
    with TemporaryDirectory(prefix="areal-sdk-home-") as home:
        place = Place(Path(home), work, session.base_url(gateway.base_url), session.key)
        for path, settings in agent.files(place).items():
            file = place.home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        env = {"PATH": f"{node().parent}:/usr/bin:/bin", "HOME": home, "TERM": "dumb"}
        printed = ""
        async with only_port(port) as prefix:
            for question, asked in zip(QUESTIONS, (agent.ask, agent.ask_again), strict=True):
                code, said = await run(
                    *("env", "-i", *(f"{k}={v}" for k, v in {**env, **agent.env(place)}.items())),
                    *(*prefix, *command, *asked(question)),
                    cwd=work,
                    timeout_s=TIMEOUT_S,
                )
                printed += said
                if code or "The answer is" not in said:
                    return code or 1, printed
    return 0, printed


def script(agent: CliAgent, work: Path) -> Callable[[str], str]:
    """The policy's words: it reads two files, and a third when it is asked for it, then answers."""

    def answer(prompt: str) -> str:
        num_read = len(set(re.findall(r"RESULT-\d", prompt)))
        wanted = 3 if QUESTIONS[1] in prompt else 2
        if num_read >= wanted or QUESTIONS[0] not in prompt or agent.read(work)[0] not in prompt:
            return f"The answer is {num_read}."
        name, arguments = agent.read(work / FILES[num_read])
        call = json.dumps({"name": name, "arguments": arguments})
        return f"Let me see.\n<tool_call>\n{call}\n</tool_call>"

    return answer


def prepare(work: Path) -> None:
    for number, name in enumerate(FILES, 1):
        (work / name).write_text(f"RESULT-{number}\n")
