"""Which gateways and devices are connected.

A gateway is connected while its MQTT connection is. A device is connected if it was heard within three of its
usual intervals through a gateway that is connected (rest-51).
"""
