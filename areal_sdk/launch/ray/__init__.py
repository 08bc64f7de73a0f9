"""Processes placed by a Ray cluster.

    launcher (main process) --frames--> driver (a child) --Ray--> a host per process, on any node
         ^                                                                           | starts
         +------------- the frames of every process, over TCP ----------- the process itself

Ray finds the room, starts a host there, and ends it when its node or the run is gone. What the processes say to one
another travels over our own connections: nothing large goes through Ray. Only the driver and the hosts import ray.
"""
