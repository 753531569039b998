"""Runs, time and the database: queue, workers, scheduler, ingester. Built with the app; nothing here yet."""
