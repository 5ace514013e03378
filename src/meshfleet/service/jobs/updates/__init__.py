"""State machine for the update of one device, written as pure functions.

`state_machine.advance_execution` takes an execution and an event and returns a `Decision`. `drivers` contains
the differences between download, broadcast and Nordic DFU.
"""
