"""Celery entry points: translate a message into one step, return."""
