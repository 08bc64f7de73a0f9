"""Sections about the services of a run: the engine, the gateway, and the machines on which processes run."""

from typing import Annotated, Literal

from pydantic import Field

from areal_sdk.config.sections.base import Device, IdleIf, Port, Positive, Seconds, Section


class EngineSection(Section):
    """The engine that samples tokens."""

    name: str = "local"
    """`local`, `sglang`, a plugin's engine, or the addresses of running servers."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the weights that sample; `auto`: the dtype of the checkpoint; the local engine takes `float32`
    on a CPU or GPU (V100, T4) of this machine that has no instructions for bfloat16."""
    device: Device = "auto"
    """`cpu`, `cuda` or `cuda:1`; `auto`: a GPU if torch finds one."""
    max_slots: Positive = 32
    """Number of requests that are decoded together."""
    max_context: Positive | None = None
    """Maximum length of prompt and output, in tokens; default: the model's own, or less if the memory
    for keys and values holds less."""
    kv_on_update: Literal["recompute", "keep"] = "recompute"
    """Keys and values of running requests when the weights change: `recompute` them, or `keep` the old
    ones. `keep` is faster, but less exact for training."""
    speculate: bool = False
    """Whether the local engine drafts tokens from earlier text, and computes several in one step where that is faster.
    The distribution of the tokens stays the same."""
    threads: Positive = 1
    """Threads of torch. Default: on a CPU of this machine the cores but one, shared evenly with the trainer's ranks."""

    @property
    def kind(self) -> str:
        """The registered engine that `name` means. Addresses are those of SGLang's servers."""
        return "sglang" if "://" in self.name else self.name


class GatewaySection(Section):
    """The OpenAI-compatible endpoint."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` accepts calls from other machines."""
    port: Annotated[
        Port,
        IdleIf(
            lambda run: run.rollout.nodes > 1,
            "each rollout node has a gateway, and takes a free port (rollout.nodes)",
        ),
    ] = 0
    """Port to listen on; 0: any free port."""
    admin_key: str | None = Field(default=None, repr=False)
    """The gateway's admin key; default: made up at start-up. It is never stored in the run."""
    tool_format: str | None = None
    """Format of the model's tool calls: `hermes`, `qwen_coder`, `glm`, `llama`, `mistral`, `deepseek`, `plain`, or a
    plugin's. Default: the format of its chat template."""
    unknown_fields: Literal["refuse", "note"] = "refuse"
    """Fields of a request that the gateway cannot honour: `refuse` the request with a 400, or leave the
    field out and `note` it in the session."""


_PLACED_BY_NONE = IdleIf(
    lambda run: not run.cluster.places,
    'no cluster places the processes (cluster.launcher = "ray" asks one)',
)
_ALL_HERE = IdleIf(
    lambda run: run.cluster.launcher == "local",
    'every process is on this machine (cluster.launcher = "local")',
)


class ClusterSection(Section):
    """The machines of a run. The main process stays where `areal-sdk` was started."""

    launcher: str = "local"
    """`local`: every process on this machine. `torchrun`: you start the trainer ranks, on any machine that has the run
    directory and the model at the same paths. `ray`: trainer ranks, engine and rollout nodes wherever a Ray cluster has
    room. Or a plugin's launcher, with options in `[cluster.NAME]`."""
    address: Annotated[str, _PLACED_BY_NONE] = "auto"
    """Address of the Ray cluster, `HOST:PORT`; `auto`: the cluster that this machine belongs to."""
    placement_timeout_s: Annotated[Seconds, _PLACED_BY_NONE] = 120.0
    """Seconds to wait for processors that other jobs of the cluster hold. A lack of processors in
    the whole cluster is an error at once."""
    listen_host: Annotated[str, _ALL_HERE] = ""
    """Address of this machine to which processes elsewhere connect. Default: `127.0.0.1` under torchrun, this
    machine's address in the cluster under Ray."""
    listen_port: Annotated[Port, _ALL_HERE] = 0
    """Port to which processes elsewhere connect; 0: any free port."""

    @property
    def places(self) -> bool:
        """Whether the launcher places every process of the run, perhaps on other machines."""
        return self.launcher not in ("local", "torchrun")
