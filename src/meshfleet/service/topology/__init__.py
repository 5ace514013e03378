"""The mesh as a tree: parents of devices now and in the past, their changes, and paths to the gateway."""
