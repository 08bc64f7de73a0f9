"""The contract modules of the package, which a plugin may import."""

CONTRACTS = {
    "backends.remote",
    *("agent", "environment", "reward", "engine", "tool_calls", "trainer", "launcher", "join"),
    *("command", "types", "trajectory", "errors", "hookspecs", "options"),
    *("algorithms", "flow", "records", "routes", "settings", "shapes", "testing"),
}
"""The modules of `areal_sdk` that are stable. Nothing is promised of what lies inside those that are folders."""
