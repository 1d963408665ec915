"""Other programs set every LaTeX that is printed: `make test-katex`, and `make test-pdflatex` where there is TeX."""
