"""The spellings of one notation, in and out."""
