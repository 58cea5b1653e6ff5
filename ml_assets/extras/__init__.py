"""Optional parts, each switched on by name. They import the core; the core imports none of them at module level."""
