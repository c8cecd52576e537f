"""The broker's side of SASL: mechanisms that check clients against the broker's users. Knows no socket."""
