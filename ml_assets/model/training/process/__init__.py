"""Processes of one training: the group of ranks, heartbeats, and early ends."""
