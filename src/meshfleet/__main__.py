"""`python -m meshfleet` is the command."""

from meshfleet.cli import main

main(prog_name="meshfleet")
