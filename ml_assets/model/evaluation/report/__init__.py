"""Report and model card of an evaluation: HTML, Markdown and pictures. Measures nothing.

report.py    pages and JSON of a report   card.py      model card
chapters.py  chapters of both             pictures.py  plots
"""
