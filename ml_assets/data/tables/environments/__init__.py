"""Environments for people: a branch of the lake beside main, with a ledger of its own. Imports `publish`.

Here:

    environment.py   create_environment, changes_of, drop_environment
    merge.py         merge_environment(main, name, by): its partitions become those of main
"""
