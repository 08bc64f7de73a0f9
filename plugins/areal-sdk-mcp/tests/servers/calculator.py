"""A real MCP server, over stdio or HTTP: `calculator.py [PORT]`."""

import os
import subprocess
import sys
import time

from mcp.server import MCPServer

server = MCPServer("calculator")
total = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count() -> int:
    """Count the calls of this tool."""
    global total
    total += 1
    return total


@server.tool()
def divide(a: int, b: int) -> float:
    """Divide two numbers."""
    return a / b


@server.tool()
def die() -> str:
    """End the server."""
    print("out of tea", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    while True:
        time.sleep(60)


@server.tool()
def child() -> int:
    """Start a process that would outlive the server, and say which."""
    return subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        print("I am ready", flush=True)  # servers print, though they should not
        server.run()
