"""Rules of users: devices that report certain values, and labels of which many devices are offline.

`state_machine` judges one series of values, without I/O. The live evaluation and the preview both use it. `tracker`
is told of each committed sample, and remembers only devices whose judgment differs from "well"; `evaluation`
writes what has changed, in the transaction of all rules.
"""
