"""Site of the docs: `make docs` has `site_pages` write its pages into build/docs, and builds them into HTML.

Here: pages of the reference, which are made from the code, and links between pages as they are on the site. Not here:
the other pages, which are in `docs/`, and the navigation, which is in mkdocs.yml.
"""
