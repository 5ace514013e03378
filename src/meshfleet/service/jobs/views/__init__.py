"""Read models of jobs and executions for the REST API."""
