"""HTTP layer of all routes: connections, access control, error responses, queries, pages, OpenAPI."""
