"""What services say over HTTP: routes, who calls, and the history of figures. Knows no protocol."""
