"""Benchmarks against the libraries that people use today: `make bench`, or `python -m benchmarks`."""
