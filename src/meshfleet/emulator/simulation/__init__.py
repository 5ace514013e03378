"""The simulated world: sites, radio, the mesh, devices and what they sense. Pure; time is an argument."""
