"""Look of every report: the frame of its page, its pictures, its numbers as text. Free of Dagster, and of any content.

    page.py   a template of a stage within the frame `page.html.j2`; a page of text and tables, as Markdown and as
              HTML; a picture in the house style, as SVG or PNG
    text.py   figures as text, and names from data as text

Not here: the content of a report, which belongs to its stage (`evaluation`, `tuning`).
"""
