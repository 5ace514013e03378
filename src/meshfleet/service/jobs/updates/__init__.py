"""One device on its way to another version: what can happen to it, and what becomes of it. All pure.

machine      what becomes of an execution
states       where it can be, and where it can go from there
model        what it is, as plain values; events: what can happen
starting, following, confirming    the three parts of an update
entering, ending    how states begin, and how all of it ends
clocks       how long things may take; reasons: why they fail
outages      when clocks stand still
drivers      the three ways of updating
"""
