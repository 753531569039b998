"""One module a revision. A released revision is never edited: a change of the tables is a new revision."""
