"""Results as a Markdown page with plots: what was measured and on what, and the papers' findings beside it.

`page` puts it together, `tables` and `charts` say what of each matrix is shown, `svg` draws.
"""
