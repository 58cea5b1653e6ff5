"""The error of everything that reads a person's file."""


class CsvRefused(ValueError):
    """A file cannot become a pipeline. The message is one line with the place, the value and the remedy."""
