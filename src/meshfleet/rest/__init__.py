"""JSON bodies, paths and input rules of the REST API, with one module per kind of resource."""
