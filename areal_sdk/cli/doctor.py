"""`areal-sdk doctor`: checks whether this machine can train and serve, and names the cures."""

import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from areal_sdk.certificate.findings import Finding, Severity
from areal_sdk.cli.certificate import check_model, label
from areal_sdk.cli.memory import check_memory
from areal_sdk.config.machine import bfloat16_is_slow
from areal_sdk.process.family import num_cores

TRAIN_PACKAGES = ("transformers", "safetensors", "datasets", "gguf")
LOOPBACK = "127.0.0.1"
LOW_DISK_GIB = 2.0
FETCHED = ("smollm2",)
"""Built-in models that come over the network: `doctor` must not fetch them."""

TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "distributed": torch.distributed.is_available(),
}))
"""


@click.group(name="doctor", invoke_without_command=True)
@click.option("--model", default="tiny", show_default=True, help="Check this model's template.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Is this port free?",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(ctx: click.Context, model: str, port: int, as_json: bool) -> None:
    """Check Python, torch, devices, ports, plugins, the cache, and a model: template and family.

    Exits with 1 when something failed. torch is imported in a process of its own, in case that fails.
    """
    if ctx.invoked_subcommand is not None:
        return
    findings = [finding for check in checks(model=model, port=port) for finding in check()]
    if as_json:
        import orjson

        click.echo(orjson.dumps(findings, option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in findings:
            _print(finding)
    if any(finding.level is Severity.FAILED for finding in findings):
        raise SystemExit(1)


doctor.add_command(check_model)
doctor.add_command(check_memory)


def checks(*, model: str, port: int) -> list[Callable[[], Iterator[Finding]]]:
    return [
        _python,
        _machine,
        _torch,
        _train_packages,
        lambda: _port(port),
        _proxies,
        _cache,
        _plugins,
        lambda: _template(model),
    ]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= (3, 14):
        yield Finding(Severity.NOTE, "python", version, "not tested yet: 3.11 to 3.13 are")
    else:
        yield Finding(Severity.OK, "python", f"{version} at {sys.executable}")


def _machine() -> Iterator[Finding]:
    cores = num_cores()
    if cores < 2:
        cure = "generation and training want a core each; runs will take turns"
        yield Finding(Severity.NOTE, "cores", str(cores), cure)
    else:
        yield Finding(Severity.OK, "cores", str(cores))
    slow = bfloat16_is_slow("auto")
    yield Finding(Severity.OK, "computes in", "float32" if slow else "bfloat16")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free / 2**30
        if free < 0.5:
            cure = "weights travel through shared memory: give the container more (--shm-size)"
            yield Finding(Severity.NOTE, "shared memory", f"{free:.1f} GiB free", cure)
        else:
            yield Finding(Severity.OK, "shared memory", f"{free:.1f} GiB free")


def _torch() -> Iterator[Finding]:
    install = (
        'pip install "areal-sdk[train]" (Linux without a GPU: install PyTorch\'s CPU build first)'
    )
    if importlib.util.find_spec("torch") is None:
        cure = f"needed to train and for the local engine: {install}"
        yield Finding(Severity.NOTE, "torch", "not installed", cure)
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", TORCH_PROBE], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        yield Finding(Severity.FAILED, "torch", "its import took over 120 s", "reinstall it")
        return
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding(Severity.FAILED, "torch", reason, f"reinstall it: {install}")
        return
    probe = json.loads(done.stdout.splitlines()[-1])
    yield Finding(Severity.OK, "torch", probe["version"])
    yield Finding(Severity.OK, "devices", ", ".join(probe["devices"]) or "CPU only")
    if not probe["distributed"]:
        yield Finding(Severity.FAILED, "torch.distributed", "missing", "the trainer needs it")


def _train_packages() -> Iterator[Finding]:
    missing = [name for name in TRAIN_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        cure = 'needed to train: pip install "areal-sdk[train]"'
        yield Finding(Severity.NOTE, "extra [train]", f"without {', '.join(missing)}", cure)
        return
    versions = [f"{name} {importlib.metadata.version(name)}" for name in TRAIN_PACKAGES]
    yield Finding(Severity.OK, "extra [train]", ", ".join(versions))


def _port(port: int) -> Iterator[Finding]:
    wanted = [(port, f"port {port}")] if port else []
    for number, what in [(0, "loopback"), *wanted]:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, number))
            except OSError as exc:
                level = Severity.NOTE if number else Severity.FAILED
                cure = "`areal-sdk serve --port 0` takes a free one" if number else ""
                yield Finding(level, what, exc.strerror or str(exc), cure)
            else:
                yield Finding(Severity.OK, what, "free" if number else f"can listen on {LOOPBACK}")


def _proxies() -> Iterator[Finding]:
    """Yield a note if a proxy is set, to which the clients of agents would send their calls to our gateway."""
    proxies = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY") if os.environ.get(name)]
    exempt = os.environ.get("NO_PROXY", "") + os.environ.get("no_proxy", "")
    if proxies and LOOPBACK not in exempt and "*" not in exempt:
        cure = f"export NO_PROXY={LOOPBACK},localhost, or agents cannot reach the gateway"
        yield Finding(Severity.NOTE, "proxy", f"{proxies[0]} is set", cure)


def _cache() -> Iterator[Finding]:
    from areal_sdk.models import find_model
    from areal_sdk.models.cache import Cache

    root = Cache().root
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        cure = "set AREAL_SDK_CACHE to a directory you can write to"
        yield Finding(Severity.FAILED, "cache", f"cannot write to {root}", cure)
        return
    free = shutil.disk_usage(existing).free / 2**30
    models = [name for name in ("smollm2", "tiny") if find_model(name) is not None]
    holds = ", ".join(models) or "nothing yet"
    found = f"{root} (AREAL_SDK_CACHE moves it), {free:.0f} GiB free, holds: {holds}"
    if free < LOW_DISK_GIB:
        yield Finding(Severity.NOTE, "cache", found, "models and checkpoints need room")
    else:
        yield Finding(Severity.OK, "cache", found)


def _plugins() -> Iterator[Finding]:
    from areal_sdk.plugins import load_plugins

    plugins = load_plugins()
    for problem in plugins.failures():
        yield Finding(Severity.FAILED, "plugin", problem, "areal-sdk plugins shows all of them")
    versions = [f"{name} {version}" for name, version in plugins.installed_versions().items()]
    yield Finding(Severity.OK, "plugins", ", ".join(versions))


def _template(model: str) -> Iterator[Finding]:
    """Whether the gateway can render chats for this model, and how it writes tools."""
    from areal_sdk.errors import ArealError
    from areal_sdk.gateway.errors import TemplateRefusalError
    from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
    from areal_sdk.gateway.tokens.template_traits import PROBE_TOOL
    from areal_sdk.models import find_model, resolve_model

    try:
        directory = find_model(model)
        if directory is None and model not in FETCHED and "/" not in model:
            directory = resolve_model(model)  # made on the spot, or told why there is none
        if directory is None:
            cure = "it is fetched when it is first used"
            yield Finding(Severity.NOTE, f"model {model}", "not on this machine", cure)
            return
        renderer = Renderer.load(directory)
    except ArealError as exc:
        yield Finding(Severity.FAILED, f"model {model}", str(exc))
        return
    try:
        renderer.first(TemplateInput(({"role": "user", "content": "."},), tools=(PROBE_TOOL,)))
    except TemplateRefusalError as exc:
        cure = "an agent that sends tools gets a 400: describe them in its own user messages"
        yield Finding(Severity.NOTE, f"model {model}", f"its template takes no tools: {exc}", cure)
        yield _certificate(model, directory)
        yield from _family(model, directory)
        return
    tools = (
        "its template renders tools"
        if not renderer.weaves_tools
        else "no tools in its template: our plain format"
    )
    yield Finding(Severity.OK, f"model {model}", tools)
    yield _certificate(model, directory)
    yield from _family(model, directory)


def _family(model: str, directory: Path) -> Iterator[Finding]:
    """Whether the trainer trains this checkpoint, and whether the default engine samples from it."""
    from areal_sdk.config import EngineSection
    from areal_sdk.errors import ConfigError
    from areal_sdk.models.families import check_trained
    from areal_sdk.plugins import load_plugins

    try:
        check_trained(directory)
    except ConfigError as exc:
        yield Finding(
            Severity.NOTE, "trainer", str(exc), "it can be evaluated and served all the same"
        )
    else:
        yield Finding(Severity.OK, "trainer", f"trains {model}")
    name = EngineSection().name
    try:
        load_plugins().engines.get(name).check_model(directory)
    except ConfigError as exc:
        yield Finding(Severity.NOTE, f"{name} engine", str(exc))
    else:
        yield Finding(Severity.OK, f"{name} engine", f"runs {model}")


def _certificate(model: str, directory: Path) -> Finding:
    """The stored result of `doctor model`, which takes too long to run here."""
    from areal_sdk.certificate import is_certified

    certified = is_certified(directory)
    if certified:
        return Finding(
            Severity.OK, "certificate", f"what {model} samples is trained as it was sampled"
        )
    cure = f"areal-sdk doctor model {shlex.quote(model)}"
    if certified is None:
        return Finding(Severity.NOTE, "certificate", f"{model} was not certified yet", cure)
    return Finding(Severity.FAILED, "certificate", f"{model} is not token-exact", cure)


def _print(finding: Finding) -> None:
    click.echo(f"{label(finding.level)} {finding.check:<16} {finding.found}")
    if finding.cure:
        click.echo(f"{'':<24} {finding.cure}")
