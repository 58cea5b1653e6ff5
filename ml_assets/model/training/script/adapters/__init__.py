"""Ready callbacks for the loops of libraries: they log, save, restore and hand in, so that a script adds few lines.

Each module imports its library, which the script's environment provides; nothing else imports these modules. Not here:
what they call (script.api).
"""
