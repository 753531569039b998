"""The scheduler process: scheduled runs, retention, backups."""
