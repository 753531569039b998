"""Export of leak-labeled dialogues as datasets; torch and `datasets` are not imported."""
