"""Assets that the components make, and what their pages show. Not here: the work of a stage, and the five steps."""
