"""Schema changes, oldest first, run by `migrate`."""
