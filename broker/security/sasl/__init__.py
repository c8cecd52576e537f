"""SASL as the broker does it: mechanisms that ask what the broker knows about users. Nothing here knows a socket."""
