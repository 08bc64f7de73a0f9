"""Commands that read runs: inspect, report, runs."""
