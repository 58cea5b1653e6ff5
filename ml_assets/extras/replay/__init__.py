"""Replay of past days for `ml-assets demo --replay`: the example of the flights, whose source gains a day at a time.

Here: the files of the source with their declared damage, the pipeline that reads them, and what happened, in lines. Not
here: processes and their pace (`cli.replay`).
"""
