"""History of the tables in the lake. Imports the files of `tables`, and `publish` for what changes main.

Here:

    log.py           log_of, blame: commits and what they changed; unaudited(store, newest): those without an audit
    diff.py          compare_lake(store, before, after): two commits; compare_windows: what two models read
    retention.py     not_retained, retire, needless_audit_branches: what may leave the lake
"""
