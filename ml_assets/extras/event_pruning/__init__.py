"""Deletion of old events from Dagster's event log. Nothing starts it but the command `ml-assets events prune`."""
