"""Training methods: from dialogues to training samples. See README.md."""
