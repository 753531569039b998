"""What the browser offers beside the content: address, keys, selection, storage, notices."""
