"""Rules of users: devices that report certain values, and labels of which many devices are offline.

`state_machine` judges one series of values, without I/O: live, and in previews. `tracker` is told of each
committed sample, and remembers only devices that are not well. `evaluator` and `writer` write what has
changed in the transaction of all rules.
"""
