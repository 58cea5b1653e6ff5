"""Processes of one training: the group of ranks, signs of life, and ending early."""
