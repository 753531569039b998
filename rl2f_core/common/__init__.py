"""What every package uses: files, paths, processes, texts, statistics, prompt templates."""
