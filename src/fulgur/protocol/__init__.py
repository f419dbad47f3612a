"""What goes over the wire: Responses items, requests, the response object, stream events, errors. Types only."""
