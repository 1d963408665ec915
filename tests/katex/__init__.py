"""KaTeX renders every LaTeX that is printed: `make test-katex`, a command of its own, for it needs node."""
