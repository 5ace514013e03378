"""Runs jobs on the database: load, decide, write the transition and its requests, and only then send."""
