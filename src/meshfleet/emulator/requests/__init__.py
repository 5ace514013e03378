"""Requests to an emulated gateway: received, carried through the mesh, executed by their target, answered."""
