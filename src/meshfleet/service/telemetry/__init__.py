"""REST resources for samples (lists, CSV, aggregated series), links, gaps, and rejected reports."""
