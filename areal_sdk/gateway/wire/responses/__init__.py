"""`/v1/responses`: requests, items, the response object and its stream."""
