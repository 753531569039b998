"""Commands that read and write files of others: questions, rollouts, datasets, models, pages."""
