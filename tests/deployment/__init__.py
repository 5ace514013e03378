"""Files of `src/meshfleet/deploy` with the programs that they are for."""
