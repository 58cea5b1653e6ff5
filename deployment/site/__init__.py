"""Site of the docs: `python -m deployment.site` writes its pages into build/docs, which `make docs` builds into HTML.

Here: pages of the reference, which are made from the code, and links between pages as they are on the site. Not here:
the other pages, which are in `docs/`, and the navigation, which is in mkdocs.yml.
"""
