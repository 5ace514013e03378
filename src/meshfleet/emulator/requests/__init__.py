"""Requests to an emulated gateway: parsing, transport through the mesh, execution, responses."""
