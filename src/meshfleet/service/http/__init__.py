"""HTTP layer shared by all routes: connections, access control, problems, queries, pages, OpenAPI."""
