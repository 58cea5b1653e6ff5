"""Optional rooms: the core works without them, and imports none of them at the top of a module.

An extra may import the core, never another extra. A command or a setting that names the extra switches it on.
"""
