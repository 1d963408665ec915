"""The spellings of one notation: what each writes for a name, an index group, a bar, a binder, an operator."""
