"""Bodies, paths and input rules of the REST interface, one module per resource."""
