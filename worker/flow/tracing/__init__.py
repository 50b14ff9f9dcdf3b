"""How steps tell of their work as spans: the port to whatever takes them, and the traces that the database keeps."""
