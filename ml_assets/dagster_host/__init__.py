"""Changes of Dagster itself: its storage, instance settings, commands, webserver, and loader of the defs folder.

Only here, and in `extras`, does product code use names of Dagster that are not public. Each module names the public
alternative of its area, and why it does not do. Not here: assets, checks and sensors (`components`).
"""
