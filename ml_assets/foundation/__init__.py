"""Parts that every stage may import: it imports nothing of the project but `resources`."""
