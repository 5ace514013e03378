"""Meshfleet: fleets of BLE-mesh devices behind MQTT gateways."""
