"""What the gateway costs and what it gains: `python -m benchmarks.gateway [--only NAME ...] [--json FILE]`."""
