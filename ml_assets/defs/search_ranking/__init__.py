"""Films in the order in which a user will like them: `objective: ranking` on MovieLens-100K, retrained every night.

Here: pages of 20 films as lists, history of film and user before each page, and a small network. The
holdout is the last four weeks, its blocks are users. Not here: rows of the data, which stay in the package `recbole`.
"""
