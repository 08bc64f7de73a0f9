"""The section of where the processes of a run are placed."""

from typing import Annotated

from areal_sdk.config.sections.base import IdleIf, Port, Seconds, Section

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
        """The launcher places every process of the run, perhaps on other machines."""
        return self.launcher not in ("local", "torchrun")
