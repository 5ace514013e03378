"""The protocol, and nothing but: values in, values out. No I/O, no clock, no logging.

ids, times, hextext     what the parts of a message are made of
codes                   kinds, operations, priorities, statuses …
topics                  topics, both ways
reports                 what gateways publish of devices
requests, responses     what clients ask, and what gateways answer
gating                  which version of the interface brought what
fields, payload         how payloads are checked, and which spellings are tolerated
identifiers             the catalogue of identifiers, and their values raw and decoded
diagnostics             a gateway asks where its firmware image is
package                 firmware images, and the packages they come in
rest                    the bodies of the REST interface
mqtt                    the packets of MQTT 3.1.1, whatever they carry
"""
