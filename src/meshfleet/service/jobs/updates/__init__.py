"""The update of one device as a pure state machine.

`state_machine.advance_execution` takes an execution and an event and returns a `Decision`. `drivers` contains
the differences between download, broadcast and Nordic DFU.
"""
