"""A complete gateway over a simulated mesh."""
