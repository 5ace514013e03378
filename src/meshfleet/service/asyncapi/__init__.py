"""The AsyncAPI 3.0 document of the messaging interface, generated from the types of its messages."""

from meshfleet.service.asyncapi.document import MessagingDocument, build_asyncapi_document, list_servers

__all__ = ["MessagingDocument", "build_asyncapi_document", "list_servers"]
