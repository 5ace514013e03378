"""Benchmarks; see `python -m bench --help`."""
