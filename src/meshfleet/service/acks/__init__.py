"""Samples are acknowledged end to end, and what is missing is asked for.

acks        follows what is committed, and acknowledges it
series      what `seq` tells of missing samples
checking    whether holes are filled, by what is stored
entry       what is written every other second
store       in which tables
figures     for Prometheus
"""
