"""Exports of leak-labeled dialogues."""
