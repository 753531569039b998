"""Export of leak-labelled dialogues as data sets.

    records.py    one dialogue with its hints, findings and labels, whatever it was read from
    sources.py    where records come from: the workspace's database, or a run's folder
    labels.py     which label counts where people and detectors differ
    rows.py       pure functions from a record to the rows of each data set type
    pairs.py      leak-free against leaking hints of one task, gathered on disk
    formats.py    the data set types: columns, Arrow schemas, words for the card
    writers.py    JSONL and Parquet, batch by batch, with checksums
    card.py       README.md as a data-set card, manifest.json
    export.py     all of it in one pass, published by one rename

Nothing here loads torch or `datasets`; pyarrow is loaded when a Parquet file is written.
"""
