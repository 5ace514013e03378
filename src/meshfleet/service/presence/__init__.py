"""Who is there: devices by their own rhythm, gateways by their connections.

presence    follows what is heard, and finds out what is not
hearing     signs of life, in every report
roster      who was heard, and through whom
rhythm      how often a device is heard
wheel       when each is to be looked at
roll_call   which gateways are connected
clocks      how far the clocks of gateways are off
model       changes
entry       what is written every other second, and who is told
store       in which tables
history     when a device was connected
routes      the same over HTTP
figures     for Prometheus
"""
