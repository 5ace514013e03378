"""Emulated gateways on a broker. Only here is there a network, and a clock on the wall.

fleet           gateways of one process, all at the same moment; `pace` tells how that moves on
uplink          one gateway's connection, through all its restarts
images          how a gateway gets a firmware image: `diagnostics` asks where it is, `download` fetches it
claims          how gateways get their credentials from a service
"""
