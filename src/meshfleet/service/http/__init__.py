"""What all routes share: connections, who may do what, errors, queries, pages, and the document of it all."""
