"""Simulation of sites, radio, mesh, devices and sensors, without I/O; time is an argument."""
