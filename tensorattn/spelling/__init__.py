"""The spellings people use, each read to the same tree and written from the same IR."""
