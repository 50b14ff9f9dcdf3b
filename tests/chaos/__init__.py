"""A fleet on its worst day: random faults from a seed, and a report of what they did not break (`make chaos`)."""
