"""Builds the AsyncAPI 3.0 document of the MQTT interface from the types of its messages."""

from meshfleet.service.asyncapi.document import MessagingDocument, build_asyncapi_document, list_servers

__all__ = ["MessagingDocument", "build_asyncapi_document", "list_servers"]
