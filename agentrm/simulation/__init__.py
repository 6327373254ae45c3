"""Simulation: stand-ins for providers and workloads that misbehave on purpose as real ones do by accident."""
