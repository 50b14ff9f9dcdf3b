"""Deterministic checks of a translation against its source. Pure: texts in, findings out; no clock, no calls."""
