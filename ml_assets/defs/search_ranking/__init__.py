"""Films in the order in which a user will like them: `objective: ranking` on MovieLens-100K, retrained every night.

Here: pages of 20 films as lists, what was known about film and user when a page was shown, and a small network. The
holdout is the last four weeks, its blocks are users. Not here: rows of the data, which stay in the package `recbole`.
"""
