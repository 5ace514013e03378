"""Positions of devices from RSSI readings of several anchors, without I/O.

An anchor is a device with a known place that reports how strongly it receives other devices. The engine never
guesses a single best place: it computes the probability of every cell of the site (`posterior`), and derives
place, floor and radius from these probabilities (`estimate`).

- `grid`: the cells of all floors of a site
- `signal_model`: which RSSI to expect at an anchor from a cell, and how wrong that may be
- `calibration`: fits the signal model to readings of devices whose places are unknown, or known
- `survey_map`: corrects the model around places where a person has stood with a device
- `motion`: combines the readings of a device over time
- `coverage`: predicts where on a floor anchors receive a device, and how exact positions are there
- `anchor_check`: finds anchors that are not where they are said to be

Levels: 0 needs the places of anchors only, 1 uses anchors that receive each other, 2 uses survey points.
`bench/position.py` measures each of them in a real room.
"""

import os

# Read when numpy is loaded. The matrices are small: more threads of OpenBLAS would mostly wait for each
# other, and take the processor from the event loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
