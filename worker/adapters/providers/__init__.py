"""Review routes: who is asked for evidence."""
