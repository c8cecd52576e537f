"""Which consumer of a subscription gets which entry: pure, one file a dispatcher."""
