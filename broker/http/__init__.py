"""HTTP/1.1 on the reactor: http:// listeners, and the routes that other services have added."""
