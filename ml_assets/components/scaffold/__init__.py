"""Text of new components for `dg scaffold`: templates, their values, and the facts of a CSV file."""
