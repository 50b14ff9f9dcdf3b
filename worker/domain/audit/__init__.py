"""What an auditor holds every stored row against: one module per kind of row. Pure rules; nothing here reads a row."""
