"""Topics whose messages are not kept: who is connected gets them, or nobody does."""
