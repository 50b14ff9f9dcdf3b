"""Receipt verifiers: who says whether a receipt proves its binding."""
