"""`Mesh`: gateways over any MQTT broker, without a service.

mesh            requests, reports, acks
requests        what is asked of gateways
asking          requests on their way, and the answers that come back
waiting         one of them, and what a broken connection means to it
reports         what gateways report, one after the other
"""
