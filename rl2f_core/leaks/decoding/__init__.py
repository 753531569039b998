"""Decode hints: plainer views of a text, and the numbers and letters that it contains in other forms."""
