"""The queries, a file each. `catalogue.load` finds them."""
