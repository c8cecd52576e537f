"""The interface between services and HTTP: routes, callers, and the history of figures. Knows no protocol."""
