"""REST resources for samples (lists, CSV, aggregated series), radio links, gaps, and rejected reports."""
