"""`areal-sdk engine`: SGLang's environment, and servers that stay up between runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from areal_sdk.backends.remote import ServerProcess
    from areal_sdk_sglang.install import SGLangEnvironment
    from areal_sdk_sglang.registry import ServerRecord

_START_TIMEOUT_S = 900.0
"""Seconds for a server to load a model: a large one on a slow disk takes this long."""
_NONE = (
    "no servers of `areal-sdk engine start MODEL`; those that train and serve start end with them and "
    "log to RUN/logs/sglang-0.log"
)


@click.group(name="engine")
def engine() -> None:
    """Install SGLang and manage its servers.

    \b
    areal-sdk engine install sglang --cpu
    areal-sdk engine start MODEL
    areal-sdk train my_agent.py --engine http://127.0.0.1:30000
    """


@engine.command()
@click.argument("name", type=click.Choice(["sglang"]))
@click.option("--cpu", is_flag=True, help="For machines without a GPU.")
@click.option("--version", help="Version of SGLang; default: the version tested with this release.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Directory of the environment."
)
def install(name: str, cpu: bool, version: str | None, into: Path | None) -> None:
    """Make a virtual environment for SGLang, whose pinned versions then cannot affect your agent."""
    from areal_sdk_sglang.install import DEFAULT_VERSION, install

    install(into, version=version or DEFAULT_VERSION, cpu=cpu, say=click.echo)


@engine.command()
@click.argument("model")
@click.option("--name", help="For stop, status and logs; default: sglang-PORT.")
@click.option(
    "--port",
    type=int,
    default=30000,
    show_default=True,
    help="Port of the server; 0: any free port.",
)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--max-context", type=click.IntRange(min=1))
@click.option("--kv-tokens", type=int, help="Size of the KV pool, in tokens.")
@click.option("--memory-fraction", type=float, help="Share of the GPU's memory for weights and KV.")
@click.option("--tp-size", type=int, default=1, show_default=True)
@click.option("--wait/--no-wait", default=True, help="Wait until the server samples.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def start(
    model: str,
    name: str | None,
    port: int,
    dtype: str,
    max_context: int | None,
    kv_tokens: int | None,
    memory_fraction: float | None,
    tp_size: int,
    wait: bool,
    arguments: tuple[str, ...],
) -> None:
    """Start a server of MODEL in the background, and wait until it samples.

    Anything after -- goes to SGLang as it is. `engine logs` shows its log.
    """
    from areal_sdk.backends.remote import EngineSection, resolve_model, start_process
    from areal_sdk.errors import ConfigError
    from areal_sdk.launcher import KeptPort
    from areal_sdk_sglang.install import find_environment
    from areal_sdk_sglang.registry import ServerRegistry
    from areal_sdk_sglang.servers import SGLangLauncher
    from areal_sdk_sglang.settings import SGLangSection

    environment = find_environment()
    settings = SGLangSection.read(
        {
            "kv_tokens": kv_tokens,
            "memory_fraction": memory_fraction,
            "tp_size": tp_size,
            "arguments": (*(() if dtype == "auto" else ("--dtype", dtype)), *arguments),
        }
    )
    model_dir = resolve_model(model)
    port = port or click.get_current_context().with_resource(KeptPort()).number
    name = name or f"sglang-{port}"
    registry = ServerRegistry()
    if any(r.is_running and r.name == name for r in registry.records()):
        raise ConfigError(f"{name} runs already: stop it first, or choose another --name")
    _check_port(port)
    log_path = registry.log_path(name)
    launcher = SGLangLauncher(
        model_dir,
        environment,
        log_path.parent,
        engine=EngineSection(max_context=max_context),
        settings=settings,
    )
    command = launcher.command(0, port=port)
    server = start_process(command, port=port, log_path=log_path, outlives_us=True)
    registry.add(name, server, model=model_dir)
    click.echo(f"{name} (pid {server.pid}) starts; log: {server.log_path}")
    if wait:
        _wait(server, environment)
        click.echo(f"ready: --engine {server.address}")


@engine.command()
@click.argument("name", required=False)
@click.option("--all", "stop_all", is_flag=True)
def stop(name: str | None, stop_all: bool) -> None:
    """Stop a server that `start` started."""
    import asyncio

    from areal_sdk_sglang.registry import ServerRegistry

    registry = ServerRegistry()
    if stop_all and not registry.records():
        click.echo(_NONE)
    for record in registry.records() if stop_all else [registry.get(name)]:
        if record.is_running:
            asyncio.run(record.process.stop(grace_s=10.0))
            click.echo(f"{record.name} is stopped")
        else:
            click.echo(f"{record.name} had died already; its log: {record.log}")
        registry.remove(record.name)


@engine.command()
@click.option("--json", "as_json", is_flag=True)
def status(as_json: bool) -> None:
    """List the servers that `start` started, and what they serve. A dead server is listed until it is stopped."""
    import asyncio

    from areal_sdk_sglang.registry import ServerRegistry

    rows = asyncio.run(_describe(ServerRegistry().records()))
    if as_json:
        import orjson

        click.echo(orjson.dumps(rows).decode())
        return
    for row in rows or [{"none": _NONE}]:
        click.echo("  ".join(f"{value}" for value in row.values()))
        if row.get("state") == "died":
            click.echo(f"  why: areal-sdk engine logs {row['name']}")


@engine.command()
@click.argument("name", required=False)
@click.option("-n", "--lines", default=40, show_default=True)
def logs(name: str | None, lines: int) -> None:
    """Show the end of a server's log."""
    from areal_sdk.errors import ConfigError
    from areal_sdk_sglang.registry import ServerRegistry

    registry = ServerRegistry()
    if not registry.records():
        raise ConfigError(_NONE)
    record = registry.get(name)
    text = Path(record.log).read_text(encoding="utf-8", errors="replace").splitlines()
    click.echo("\n".join(text[-lines:]))


def _check_port(port: int) -> None:
    import socket

    from areal_sdk.errors import ConfigError

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as exc:
            raise ConfigError(
                f"port {port} cannot be used ({exc}): choose another --port"
            ) from None


def _wait(server: "ServerProcess", environment: "SGLangEnvironment") -> None:
    import asyncio

    import aiohttp

    from areal_sdk.backends.remote import ServerFailedError, wait_until_ready
    from areal_sdk.errors import EngineError
    from areal_sdk_sglang.client import SGLangClient

    async def ready() -> None:
        async with aiohttp.ClientSession() as session:
            await wait_until_ready(
                SGLangClient(server.address, session),
                timeout_s=_START_TIMEOUT_S,
                is_running=lambda: server.is_running,
            )

    try:
        asyncio.run(ready())
    except ServerFailedError as exc:
        raise EngineError(
            f"{exc} (SGLang {environment.version}); the end of {server.log_path}: "
            f"{server.last_lines()}"
        ) from None


async def _describe(records: "list[ServerRecord]") -> list[dict[str, object]]:
    import aiohttp

    from areal_sdk.backends.remote import Deadlines
    from areal_sdk.errors import EngineError
    from areal_sdk_sglang.client import SGLangClient

    rows: list[dict[str, object]] = []
    async with aiohttp.ClientSession() as session:
        for record in records:
            client = SGLangClient(record.address, session, deadlines=Deadlines(control_s=3.0))
            state, weights = "died", ""  # `stop` takes it off the list
            if record.is_running:
                try:
                    weights = await client.weight_label()
                    state = "running"
                except EngineError:
                    state = "starting or hung"
            rows.append(
                {
                    "name": record.name,
                    "state": state,
                    "address": record.address,
                    "model": record.model,
                    "weights": weights,
                    "pid": record.pid,
                }
            )
    return rows
