"""The peers: what each installs, in an environment of its own, and the program that serves it.

Nothing needs to be there beforehand: an environment is made when it is first asked for, and kept
in the repository's root (`.venv-peer-*`, a few hundred MB each, AReaL's 2 GB).
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gateways.process import Server, ServerError

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "peer_programs"
INSTALL_S = 1800.0


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    """Installed alone: most of what they name needs a GPU, and is not imported here."""

    def python(self) -> Path:
        """The peer's interpreter, after installing what is not there yet."""
        directory = ROOT / f".venv-peer-{self.name}"
        python, done = directory / "bin" / "python", directory / "installed"
        wanted = "\n".join((*self.without_dependencies, *self.requirements))
        if done.exists() and done.read_text() == wanted:
            return python
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write(_torch())  # an unpinned torch pulls several GB of CUDA packages
            constraints.flush()
            if self.without_dependencies:
                _pip(python, "--no-deps", *self.without_dependencies)
            _pip(python, "--constraint", constraints.name, *self.requirements)
        done.write_text(wanted)
        return python


def _torch() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"it did not install in {INSTALL_S:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else "pip failed"
        raise ServerError(f"it did not install: {reason.removeprefix('ERROR: ')[:160]}")


@dataclass(frozen=True, slots=True)
class Peer:
    title: str
    records: str
    """The parts of an answer that the peer keeps for training."""
    program: str
    environment: Environment
    how: str
    """The peer's configuration, for the report."""
    arguments: tuple[str, ...] = ()

    def serve(self, model_dir: Path, num_sessions: int, *, upstream: str) -> Server:
        """Raises `ServerError` with the reason where it does not install or start."""
        python = self.environment.python()
        command = [str(python), str(PROGRAMS / self.program), *self.arguments]
        command += ["--model", str(model_dir), "--sessions", str(num_sessions)]
        return Server([*command, "--upstream", upstream])


LITELLM = "litellm[proxy]==1.106.0"
"""1.108 and later want a certifi that could not be had when this was written."""

_LITELLM = Environment("litellm", (LITELLM,))
_AGENTLIGHTNING = Environment("agentlightning", ("agentlightning==0.3.0", LITELLM))
_VERIFIERS = Environment("verifiers", ("verifiers==0.4.0",))
_AREAL = Environment(
    "areal",
    (
        "torch",
        "transformers==5.3.0",
        "litellm==1.81.3",  # later ones moved a module that it imports
        "hydra-core==1.4.0.dev1",
        "omegaconf==2.4.0.dev2",
        *("aiofiles", "aiohttp", "anthropic", "colorama", "colorlog", "einops", "fastapi"),
        *("flask", "httpx", "lark", "numba", "numpy", "nvidia-ml-py", "openai", "orjson"),
        *("pillow", "psutil", "pyyaml", "ray[default]", "requests", "rich", "tenacity"),
        *("torchdata", "uvicorn", "uvloop"),
    ),
    without_dependencies=("areal==1.0.4",),
)

PEERS = {
    "litellm": Peer(
        "litellm 1.106.0 proxy",
        "nothing",
        "run_litellm.py",
        _LITELLM,
        "`litellm --num_workers 1` with the settings of its own benchmarks (no callbacks, no "
        "retries). It logs errors only, and has no database and no key to check. Its Rust core does "
        "not take this route.",
    ),
    "agentlightning": Peer(
        "agent-lightning 0.3.0 proxy",
        "spans",
        "run_agentlightning.py",
        _AGENTLIGHTNING,
        "`LLMProxy` with its default middlewares and callbacks, which record, an in-memory store "
        "in the same process, and the litellm above.",
    ),
    "areal": Peer(
        "AReaL 1.0.4 proxy, engine inside",
        "tokens",
        "run_areal.py",
        _AREAL,
        "`proxy_rollout_server` under uvicorn and uvloop with its own settings. Its engine is in "
        "the same process and answers at once, as in this gateway. It runs without its GPU "
        "dependencies, on torch for the CPU, with the litellm version whose modules it imports (1.81.3).",
    ),
    "verifiers": Peer(
        "verifiers 0.4.0 interception, eval client",
        "text",
        "run_verifiers.py",
        _VERIFIERS,
        "one `InterceptionServer`, one session per rollout; it passes calls on as they are.",
        ("--client", "eval"),
    ),
    "verifiers-train": Peer(
        "verifiers 0.4.0 interception, train client",
        "tokens",
        "run_verifiers.py",
        _VERIFIERS,
        "the same server. It renders with its default renderer, since it has none for this model. It "
        "asks the upstream for tokens by vLLM's route.",
        ("--client", "train"),
    ),
}
