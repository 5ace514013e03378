"""Positions of devices: readings of anchors, survey points, calibration of sites, and estimates.

`meshfleet.positioning` has the method. Modules that use it load numpy, which takes time and memory:
`positions.PositionFinder` loads them when the first position of a site is asked for.
"""
