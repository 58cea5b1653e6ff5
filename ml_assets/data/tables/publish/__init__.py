"""Write–audit–publish: the only way of rows to main. Imports the files of `tables`, and no other room.

Here:

    publish.py       publish(store, ledger, spec, incoming, run, tables) -> PublishResult(merged, rejected, failed,
                     commit_id); publish_in_chunks(…, chunk_bytes) for long ranges; published_by(runs, …): what an
                     interrupted run has already published; land(…): branch to main, in the turn of the table
    prepare.py       frame to objects of the lake
    audit.py         validate(…): the verdict on each partition; drift_of_partitions(reader, spec, new)
    earlier.py       keep_earlier(…): the rows that a correction replaces
    rejected.py      accept_partition(store, ledger, table, key, by, reason): a person accepts a rejected partition;
                     readmit(store, ledger, spec, key, by, tables): rows that were set aside, and pass now
"""
