"""HTTP layer of all REST routes: connections, access control, error responses, queries, pages, OpenAPI."""
