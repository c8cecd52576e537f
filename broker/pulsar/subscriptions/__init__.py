"""What a subscription has consumed, and what it does for its consumers."""
