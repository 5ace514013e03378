"""The messaging interface, described for programs: AsyncAPI 3.0, made of the types that parse and answer.

messaging       the document of one installation
document        the whole
servers         where MQTT is spoken
channels        which topics there are
operations      what the service sends and receives there
messages        what it sends and receives
schemas         their payloads, from the structs of `wire`
spellings       how fields are written, and what else is read
meanings        what fields mean, for people
envelopes       the payloads of diagnostics
parameters      the variable levels of topics, with the catalogue
access          who may publish and read where, from the rules of the broker
examples        payloads, written by the codecs
routes          the document over HTTP

All but the last is pure: values in, values out.
"""

from meshfleet.service.asyncapi.document import MessagingDocument, build_asyncapi_document, list_servers

__all__ = ["MessagingDocument", "build_asyncapi_document", "list_servers"]
