"""The figures of the documentation, one a file; `docs/draw_figures.py` draws them."""
