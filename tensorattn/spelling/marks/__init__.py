"""What each spelling writes for a name, an index group, a bar, a binder, an operator; `showing` asks for it."""
