"""Samples are acknowledged end to end, and what is missing is asked for.

acks        follows what is committed, and acknowledges it
series      what `seq` tells of missing samples
strays      the same where nobody believes the clock
agenda      when holes are looked at, and in whose turn
checking    whether holes are filled, by what is stored
entry       what is written every other second
store       in which tables
holed       how many holes there are
figures     for Prometheus
"""
