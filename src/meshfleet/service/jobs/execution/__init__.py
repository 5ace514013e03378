"""Execution of jobs on the database: load, decide, write transitions and requests, and only then send."""
