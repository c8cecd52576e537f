"""HTTP/1.1 on the reactor: http:// listeners, which serve the routes that services have added."""
