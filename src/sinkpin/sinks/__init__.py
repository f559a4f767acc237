"""Which tokens of a prompt are attention sinks, what kind they are, and what it costs to lose them."""
