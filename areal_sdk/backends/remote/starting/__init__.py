"""The start of inference servers: on this machine, or on machines where a launcher places a process beside each."""
