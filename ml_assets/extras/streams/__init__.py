"""Sources with a client library of their own: topics of Kafka, tables of Delta Lake and Iceberg.

Nothing outside imports this room when it is imported itself: `sources.kinds` imports a kind at the first section of it.
"""
