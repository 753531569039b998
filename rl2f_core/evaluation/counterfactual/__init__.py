"""What if the hint had been different? Stored dialogues go on from one of their turns under other hints."""
