"""REST route that returns the catalogue of known identifiers and products."""
