"""The simulation: sites, radio, mesh, devices and sensors. It does no I/O; time is an argument."""
