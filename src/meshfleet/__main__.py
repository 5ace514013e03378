"""Entry point of `python -m meshfleet`."""

from meshfleet.cli import main

main(prog_name="meshfleet")
