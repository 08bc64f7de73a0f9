"""A gateway over a scripted engine for a script to talk to, on a free port, in this process."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.accounts.accounts import Quota
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.testing import ScriptedEngine
from tests.gateway.model_dirs import make_model_dir

MAX_CONTEXT = 32768


@asynccontextmanager
async def served(
    answer: Callable[[str], str],
    *,
    model_name: str = "policy",
    shape: str = "qwen2.5",
    admin_key: str = "sk-admin-of-clients",
    tokens_per_chunk: int = 1,
    max_context: int = MAX_CONTEXT,
) -> AsyncIterator[Gateway]:
    """`answer` says what the policy says to a prompt."""
    with TemporaryDirectory(prefix="areal-sdk-clients-") as directory:
        model_dir = make_model_dir(Path(directory) / shape, shape)
        engine = ScriptedEngine(
            lambda request: answer(engine.decode(request.tokens)),
            model_dir=model_dir,
            max_context=max_context,
            constrains_json=True,
            tokens_per_chunk=tokens_per_chunk,
        )
        gateway = Gateway(
            engine,
            renderer=Renderer.load(model_dir),
            model_name=model_name,
            admin_key=admin_key,
            quota=Quota(max_sessions=1_000_000),  # what a fuzzer opened does not refuse the rest
        )
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.aclose()


async def run(
    *command: str | Path, cwd: Path | None = None, timeout_s: float, **env: str
) -> tuple[int, str]:
    """The exit code and what was printed; a program that does not end in time is ended."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=cwd,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        printed, _ = await process.communicate()
        return 124, f"{printed.decode(errors='replace')}\nended after {timeout_s:g} s"
    return process.returncode or 0, printed.decode(errors="replace")


def write_table(page: Path, name: str, lines: list[str]) -> None:
    """Put `lines` between the page's two marks of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text()
    body = "\n".join(lines)
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{page} has no {begin}")
    page.write_text(pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text))
