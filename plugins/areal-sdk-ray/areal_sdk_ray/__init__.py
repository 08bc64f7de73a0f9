"""The launcher `ray`: processes of a run, placed by a Ray cluster.

    launcher (main process) --frames--> driver (a child) --Ray--> a host per process, on any node
         ^                                                                           | starts
         +------------- the frames of every process, over TCP ----------- the process itself

Ray finds the room, starts a host there, and ends the host when its node or the run is gone. Processes of a run talk to one
another over connections of areal-sdk: nothing large goes through Ray. Only the driver and the hosts import ray.
"""

from areal_sdk import hookimpl


@hookimpl
def register_launchers(register):  # type: ignore[no-untyped-def]
    register("ray", "areal_sdk_ray.launcher:open_ray")
