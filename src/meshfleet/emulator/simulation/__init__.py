"""The simulation: sites, radio, mesh, devices and sensors. It is pure; time is an argument."""
