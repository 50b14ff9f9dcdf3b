"""Plain values: settings, Celery configuration and logging. Imports nothing of ours."""
